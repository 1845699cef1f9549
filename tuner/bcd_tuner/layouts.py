"""Convolutions with their channels last: the innermost loop of a schedule can then be a vector of channels.

With channels first that loop runs along a row of the image, whose length is seldom a multiple of a vector. The convolutions of
PP-OCRv4's text detector (96 x 96, 2 cores with 256-bit vectors, 16 trials a task) took 1.7 ms so, and 3.0 ms as imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir import IRModule, Op, TensorLoad
from tvm.relax.dpl import is_const, is_op, rewrite_call, wildcard

_WANTED = {
    "relax.nn.conv2d": ["NHWC", "HWIO"],
    "relax.nn.conv2d_transpose": ["NCHW", "IOHW"],  # TVM lowers no other
}
_CALL_TIR = Op.get("relax.call_tir")
_BINARY = frozenset(
    f"relax.{name}" for name in ("add", "divide", "floor_divide", "maximum", "minimum", "mod", "multiply", "power", "subtract")
)


def channels_last(mod: IRModule) -> IRModule:
    """The network with its convolutions in NHWC, and whatever lies between them as far as TVM can follow.

    Inputs and outputs stay as they are.
    """
    followable = _without_clip(_with_scalars(_without_opaque_bounds(mod)))
    passes = [
        relax.transform.ConvertLayout(_WANTED),
        relax.transform.Normalize(),
        tvm.transform.module_pass(lambda mod, _: _with_folded_weights(mod), opt_level=0),
        relax.transform.CanonicalizeBindings(),
        relax.transform.DeadCodeElimination(["main"]),
    ]
    return tvm.transform.Sequential(passes)(followable)


def _with_folded_weights(mod: IRModule) -> IRModule:
    """Constants in another layout, turned by numpy: TVM's own folding compiles and runs a function for each of them."""
    constant = is_const()

    def turned(call: Any, matched: Any) -> Any:
        array = matched[constant].value.numpy()
        axes = None if call.attrs.axes is None else [int(axis) for axis in call.attrs.axes]
        return relax.const(np.ascontiguousarray(array.transpose(axes)), str(array.dtype))

    changed = mod.clone()
    turn = is_op("relax.permute_dims")(constant)
    changed.update_func(mod.get_global_var("main"), rewrite_call(turn, turned, mod["main"]))
    return changed


def _without_opaque_bounds(mod: IRModule) -> IRModule:
    """Maxima and minima with a scalar that an importer wrote as functions, as the operators that they are."""
    changed = mod.clone()
    changed.update_func(mod.get_global_var("main"), _Bounds(mod).visit_expr(mod["main"]))
    return changed


@relax.expr_functor.mutator
class _Bounds(relax.PyExprMutator):  # type: ignore[misc]
    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self._mod = mod

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if call.op != _CALL_TIR or len(call.args[1].fields) != 2:
            return call
        operator = _bounding(self._mod[call.args[0]])
        return operator(*call.args[1].fields) if operator else call


def _bounding(function: Any) -> Callable[[Any, Any], Any] | None:
    """`maximum` or `minimum`, when that is all the function does, element by element, to a tensor and a scalar."""
    stores: list[Any] = []
    tvm_ffi.structural_walk(function.body, (tirx.BufferStore, stores.append))
    if len(stores) != 1 or not isinstance(stores[0].value, (tirx.Max, tirx.Min)):
        return None
    value = stores[0].value
    plain = (
        isinstance(value.a, TensorLoad)
        and isinstance(value.b, TensorLoad)
        and tvm_ffi.structural_equal(value.a.indices, stores[0].indices)
        and len(value.b.indices) == 0
        and (value.a.source, value.b.source) == tuple(function.params[:2])
    )
    return (relax.op.maximum if isinstance(value, tirx.Max) else relax.op.minimum) if plain else None


def _without_clip(mod: IRModule) -> IRModule:
    """Clipping as a maximum and a minimum, whose layout TVM infers; of clip it does not."""
    value, low, high = wildcard(), wildcard(), wildcard()

    def bounded(_: Any, matched: Any) -> Any:
        dtype = str(matched[value].ty.dtype)
        bounds = [relax.const(bound.value, dtype) for bound in (matched[low], matched[high])]
        return relax.op.minimum(relax.op.maximum(matched[value], bounds[0]), bounds[1])

    changed = mod.clone()
    changed.update_func(mod.get_global_var("main"), rewrite_call(is_op("relax.clip")(value, low, high), bounded, mod["main"]))
    return changed


def _with_scalars(mod: IRModule) -> IRModule:
    """Constants of one element as scalars, which have every layout."""
    changed = mod.clone()
    changed.update_func(mod.get_global_var("main"), _Scalars().visit_expr(mod["main"]))
    return changed


@relax.expr_functor.mutator
class _Scalars(relax.PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if not (isinstance(call.op, Op) and call.op.name in _BINARY):
            return call
        args = [_as_scalar(arg, other) for arg, other in zip(call.args, reversed(call.args), strict=True)]
        return relax.Call(call.op, args, call.attrs)


def _as_scalar(arg: Any, other: Any) -> Any:
    """The constant as a scalar, if that leaves the shape of the result as it is."""
    if not isinstance(arg, tvm.ir.GenericConst) or isinstance(other, tvm.ir.GenericConst):
        return arg
    value = arg.value.numpy()
    if value.size != 1 or value.ndim == 0 or value.ndim > other.ty.ndim:
        return arg
    return relax.const(value.reshape(()), str(value.dtype))
