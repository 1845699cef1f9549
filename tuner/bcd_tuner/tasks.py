"""Network -> Relax -> tasks, and back: from a module with schedules to one that is ready to compile."""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx, topi
from tvm.ir import Call, GlobalVar, IRModule, Op, TensorLoad, Var
from tvm.relax.dpl import is_const, is_op, rewrite_call, wildcard
from tvm.s_tir import SBlock
from tvm.s_tir.meta_schedule.relax_integration import extract_tasks
from tvm.target import Target
from tvm.tirx.buffer import BufferType

from bcd_registry.errors import NetworkError
from bcd_registry.model import Task
from bcd_tuner.layouts import channels_last
from bcd_tuner.networks import ImportedNetwork, InputSpec
from bcd_tuner.subgraph import workload_of

_LOG = logging.getLogger(__name__)
_POINTWISE = (0, 1)
"""TVM's `kElemWise` and `kBroadcast`."""
_INJECTIVE = 2
"""TVM's `kInjective`."""


_CUSTOM_RULE = "schedule_rule"
"""An annotation that names a rule of another target, about which MetaSchedule warns on a CPU."""


@dataclass(frozen=True, slots=True)
class TaskModule:
    """A task with its program.

    Attributes:
        mod: One TIR function `main`, its names canonical.
    """

    task: Task
    mod: IRModule


@dataclass(frozen=True, slots=True)
class LoweredNetwork:
    """A network as TIR functions that a Relax function calls, before any schedule.

    Attributes:
        mod: Every TIR function with canonical names, so that the module of a task is structurally equal to its function.
        tasks: In the order of the network's calls, each workload once; functions that cannot be scheduled are left out.
    """

    mod: IRModule
    target: Target
    tasks: tuple[TaskModule, ...]
    inputs: tuple[InputSpec, ...]


def lower(network: ImportedNetwork, target: Target, *, keep_layout: bool = False) -> LoweredNetwork:
    """Lower a network as TVM's own tuning pipeline does, weights' layout left free, and take out its tasks.

    Args:
        keep_layout: Leave convolutions in the layout of the model, instead of with their channels last.

    Raises:
        NetworkError: TVM cannot lower an operator of the network.
    """
    try:
        with target:
            mod = _lowering(keep_layout)(flush_denormals(fold_constant_views(network.mod)))
    except Exception as error:
        raise NetworkError(
            f"TVM cannot lower {network.spec.label}: {_first_line(error)}", hint="the operator or its shape is not supported"
        ) from error
    labels = {var.name_hint: label_of(var.name_hint, function) for var, function in mod.functions.items() if _is_tir(function)}
    mod = canonicalise(mod)
    return LoweredNetwork(mod, target, tuple(_iter_tasks(mod, target, labels)), network.inputs)


def finish(mod: IRModule, target: Target) -> IRModule:
    """After schedules are applied: fold the weights' new layouts into the constants, so that no call lays them out again.

    `LiftTransformParams` is for weights that are parameters; here they are constants, and folding is enough.
    """
    passes = [
        tvm.transform.module_pass(_split_layout_rewrites, opt_level=0),
        relax.transform.FoldConstant(),
        relax.transform.CanonicalizeBindings(),
        relax.transform.DeadCodeElimination(["main"]),
    ]
    with target:
        return tvm.transform.Sequential(passes)(mod)


def canonicalise(mod: IRModule) -> IRModule:
    """The module with every name inside its TIR functions replaced by its number.

    Traces address blocks by name and the names of caches come from buffers; structural equality ignores both. Under
    numbered names a trace of one function replays on any other that is structurally equal.
    """
    return _map_tir(mod, canonical_function)


def canonical_function(function: Any) -> Any:
    """A TIR function whose blocks, buffers and variables are named by their order; allocations in order of use."""
    order = _buffers_by_use(function)
    names = _Names()
    for buffer in order:
        names.variable(buffer)

    def block(old: Any) -> Any:
        name = old.name_hint if old.name_hint == "root" else f"block_{next(names.blocks)}"
        allocated = sorted(old.alloc_buffers, key=names.rank)
        annotations = {k: v for k, v in old.annotations.items() if str(k) != _CUSTOM_RULE}
        fields = (old.body, old.init, allocated, old.match_buffers, annotations, old.span)
        return SBlock(old.iter_vars, old.reads, old.writes, name, *fields)

    renamed = tvm_ffi.structural_map(function, [(SBlock, block), (Var, names.variable)], order="post")
    return renamed.without_attr("op_pattern")


def label_of(name: str, function: Any) -> str:
    """A short label for people, from the name that lowering gave a function: `conv2d+add+relu`."""
    words = name.split("_")
    ops: list[str] = []
    while words:
        n, op = next(((n, op) for n in range(min(len(words), 4), 0, -1) if (op := _operator("_".join(words[:n])))), (1, ""))
        op = op or words[0].rstrip("0123456789")
        words = words[n:]
        if op not in (*ops, "fused", "tir", ""):
            ops.append(op)
    grouped = "group_conv2d" in function.script()
    return "+".join("group_conv2d" if op == "conv2d" and grouped else op for op in ops)


def fold_constant_views(mod: IRModule) -> IRModule:
    """Reshape constants with numpy: TVM's own folding compiles and runs a function for each, seconds for a network."""
    constant, shape = is_const(), wildcard()
    reshape = is_op("relax.reshape")(constant, shape)
    expand = is_op("relax.expand_dims")(constant)

    def folded(call: Any, matched: Any) -> Any:
        dims = call.ty.shape.values
        if not all(isinstance(dim, tirx.IntImm) for dim in dims):
            return call
        array = matched[constant].value.numpy().reshape([int(dim) for dim in dims])
        return relax.const(array, dtype=str(array.dtype))  # by itself it narrows int64 and float64

    main = mod["main"]
    for pattern in (reshape, expand):
        main = rewrite_call(pattern, folded, main)
    changed = mod.clone()
    changed.update_func(mod.get_global_var("main"), main)
    return changed


def flush_denormals(mod: IRModule) -> IRModule:
    """Constants so small that they have no normal float become zero.

    Weight decay leaves many of them in trained weights, and a processor takes over a hundred cycles for each operation on
    one: half of the time of PP-OCRv6's text detector. The change is below 1.2e-38 for float32.
    """
    changed = mod.clone()
    changed.update_func(mod.get_global_var("main"), _DenormalFlush().visit_expr(mod["main"]))
    return changed


@relax.expr_functor.mutator
class _DenormalFlush(relax.PyExprMutator):  # type: ignore[misc]
    def visit_generic_const_(self, op: Any) -> Any:
        values = op.value.numpy() if isinstance(op.ty, relax.TensorType) else np.zeros(0, dtype=np.int64)
        if values.dtype.kind != "f":
            return op
        small = (values != 0) & (np.abs(values) < np.finfo(values.dtype).tiny)
        return relax.const(np.where(small, 0, values).astype(values.dtype), str(values.dtype)) if small.any() else op


class _Names:
    """New variables for old ones, numbered in the order they are met."""

    def __init__(self) -> None:
        self.blocks = itertools.count()
        self._renamed: dict[Any, Any] = {}
        self._ranks: dict[Any, int] = {}

    def variable(self, var: Any) -> Any:
        """The new variable of an old one, the same at every use."""
        new = self._renamed.get(var)
        if new is None:
            prefix = "buffer" if isinstance(var.ty, BufferType) else "v"
            new = self._renamed[var] = Var(f"{prefix}_{len(self._renamed)}", var.ty)
            self._ranks[new] = len(self._ranks)
        return new

    def rank(self, new: Any) -> int:
        """When a new variable was met."""
        return self._ranks[new]


def _lowering(keep_layout: bool) -> Any:
    """The passes of TVM's `static_shape_tuning_pipeline` up to tuning, with another layout and two corrections of its own."""
    return tvm.transform.Sequential(
        [
            relax.transform.DecomposeOpsForInference(),
            relax.transform.CanonicalizeBindings(),
            tvm.transform.module_pass(lambda mod, _: mod if keep_layout else channels_last(mod), opt_level=0),
            relax.transform.LegalizeOps({"relax.erf": _vectorizable_erf}),
            relax.transform.AnnotateTIROpPattern(),
            tvm.transform.module_pass(_correct_patterns, opt_level=0),
            relax.transform.FoldConstant(),
            relax.transform.FuseOps(),
            relax.transform.FuseTIR(),
            relax.transform.AttachAttrLayoutFreeBuffers(),
            tvm.transform.module_pass(_pin_rearranged_weights, opt_level=0),
            relax.transform.DeadCodeElimination(["main"]),
        ]
    )


def _correct_patterns(mod: IRModule, _: Any) -> IRModule:
    """Padding at the end of an axis reads element for element, so TVM takes it for an element-wise operator.

    Fused behind a convolution, two of three of its schedules then leave the padding unwritten. As an injective operator
    it is not fused there.
    """

    def corrected(function: Any) -> Any:
        guarded = any(_is_guarded(store.value) for store in _all(function.body, tirx.BufferStore))
        pointwise = _attribute(function, "op_pattern", None) in _POINTWISE
        return function.with_attr("op_pattern", _INJECTIVE) if guarded and pointwise else function

    return _map_tir(mod, corrected)


def _pin_rearranged_weights(mod: IRModule, _: Any) -> IRModule:
    """A weight that is rearranged before its use (as in a transposed convolution) keeps its layout.

    TVM's RewriteLayout takes the rearranging block for a plain copy, and the results are wrong.
    """

    def pinned(function: Any) -> Any:
        free = [int(i) for i in _attribute(function, "layout_free_buffers", ())]
        moved = {buffer for store in _all(function.body, tirx.BufferStore) for buffer in _rearranged(store)}
        kept = [i for i in free if function.params[i] not in moved]
        return function if kept == free else function.with_attr("layout_free_buffers", kept)

    return _map_tir(mod, pinned)


def _split_layout_rewrites(mod: IRModule, _: Any) -> IRModule:
    """TVM's SplitLayoutRewritePreproc, shown only the functions that rewrite a layout: it aborts on opaque ones."""
    aside = {var: f for var, f in mod.functions.items() if _is_tir(f) and not _rewrites_layout(f)}
    shown = IRModule({var: f for var, f in mod.functions.items() if var not in aside}, mod.attrs, mod.global_infos)
    changed = relax.transform.SplitLayoutRewritePreproc()(shown)
    changed.update(IRModule(aside))
    return changed


def _map_tir(mod: IRModule, change: Callable[[Any], Any]) -> IRModule:
    """A module with every TIR function changed."""
    changed = mod.clone()
    for var, function in mod.functions.items():
        if _is_tir(function):
            changed.update_func(var, change(function))
    return changed


def _all(node: Any, kind: type) -> list[Any]:
    """Every node of a kind in TIR, inner ones first."""
    found: list[Any] = []
    tvm_ffi.structural_walk(node, (kind, found.append))
    return found


def _attribute(function: Any, name: str, default: Any) -> Any:
    return default if function.attrs is None else function.attrs.get(name, default)


def _is_guarded(value: Any) -> bool:
    return isinstance(value, Call) and str(getattr(value.op, "name", "")).endswith("if_then_else")


def _rearranged(store: Any) -> tuple[Any, ...]:
    """The buffer that a store only moves to other indices, if that is all it does."""
    loads = _all(store.value, TensorLoad)
    moves = any(not tvm_ffi.structural_equal(load.indices, store.indices) for load in loads)
    return (loads[0].source,) if moves and len({load.source for load in loads}) == 1 else ()


def _rewrites_layout(function: Any) -> bool:
    return any("meta_schedule.layout_rewrite_preproc" in block.annotations for block in _all(function.body, SBlock))


def _is_tunable(function: Any) -> bool:
    """Whether there is something to schedule: blocks under a root, and extents that are numbers."""
    blocks = _all(function.body, SBlock)
    extents = [i.dom.extent for block in blocks for i in block.iter_vars]
    dims = [dim for param in function.params if isinstance(param.ty, BufferType) for dim in param.ty.shape]
    return len(blocks) > 1 and blocks[-1].name_hint == "root" and all(isinstance(n, tirx.IntImm) for n in (*extents, *dims))


def _vectorizable_erf(builder: Any, call: Any) -> Any:
    """A rational function at most 3.3e-7 from erf: a call of libm's for each element takes 35 times as long."""
    argument = call.args[0]
    compute = topi.fast_erf if str(argument.ty.dtype) == "float32" else topi.erf
    return builder.call_te(compute, argument, primfunc_name_hint="erf")


def _buffers_by_use(function: Any) -> list[Any]:
    """Parameters, then every other buffer in the order of its first access."""
    buffers = dict.fromkeys(function.params)

    def use(node: Any) -> None:
        buffers.setdefault(node.buffer if isinstance(node, tirx.BufferStore) else node.source)

    tvm_ffi.structural_walk(function.body, ((tirx.BufferStore, TensorLoad), use), order="post")
    return list(buffers)


def _iter_tasks(mod: IRModule, target: Target, labels: dict[str, str]) -> Iterator[TaskModule]:
    """The tasks in the order of their first call; functions that are structurally equal are one task."""
    normalise = tvm_ffi.get_global_func("tvm.s_tir.meta_schedule.normalize_mod")
    names: dict[Any, str] = {}
    for name in _called(mod):
        names.setdefault(_structure(normalise(mod[name])), name)
    position = {name: i for i, name in enumerate(names.values())}
    found: dict[str, TaskModule] = {}
    extracted = [(names[_structure(t.dispatched[0])], t) for t in extract_tasks(mod, target)]
    for name, task in sorted(extracted, key=lambda pair: position[pair[0]]):
        module = task.dispatched[0]
        if not _is_tunable(module["main"]):
            _LOG.debug("%s runs as it is: no schedule can be searched for it", name)
            continue
        workload = workload_of(module, labels[name])
        if workload.key in found:
            raise NetworkError(f"{name} and {found[workload.key].task.name} differ and have one key", hint="please report it")
        found[workload.key] = TaskModule(Task(name, workload, int(task.weight)), module)
    yield from found.values()


def _structure(mod: IRModule) -> Any:
    return tvm_ffi.StructuralKey(mod["main"])


def _called(mod: IRModule) -> list[str]:
    """Names of the TIR functions that the network calls, in order, each as often as it is called."""
    names: list[str] = []

    def visit(node: Any) -> None:
        if isinstance(node, Call) and node.args and isinstance(node.args[0], GlobalVar):
            names.append(str(node.args[0].name_hint))

    callers = {var.name_hint: f for var, f in mod.functions.items() if not _is_tir(f)}
    for name in sorted(callers, key=lambda name: (name != "main", name)):
        relax.analysis.post_order_visit(callers[name], visit)
    return names


@functools.cache
def _operators() -> frozenset[str]:
    return frozenset(str(name).rsplit(".", 1)[-1] for name in Op.list_op_names() if str(name).startswith("relax."))


def _operator(word: str) -> str:
    """The operator that a part of a function's name stands for; empty when there is none."""
    plain = word.rstrip("0123456789")
    return next((op for op in (word, plain) if op in _operators()), "")


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _is_tir(function: Any) -> bool:
    return isinstance(function, tirx.PrimFunc)
