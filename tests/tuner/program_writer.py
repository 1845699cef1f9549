"""Random programs written down as TIR: names, variables and the order in which things are made depend on a seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm.ir import Range, Var
from tvm.s_tir import SBlock, SBlockRealize

from tests.tuner.random_programs import (
    Affine,
    Binary,
    Buffer,
    Cast,
    Choice,
    Compare,
    Constant,
    Expression,
    Indirect,
    Load,
    Program,
    Stage,
    Unary,
    nodes,
)

NAME_BEGINS = "zq"
"""How every name in a written program begins, so that one is found where none belongs."""


def write(program: Program, seed: int) -> Any:
    """The program as a module with one function; names and the order in which things are made depend on the seed."""
    return _Writer(program, np.random.default_rng([seed, 2])).module()


class _Writer:
    """Writes one program down once."""

    def __init__(self, program: Program, rng: np.random.Generator) -> None:
        self._program, self._rng = program, rng
        order = [int(n) for n in rng.permutation(len(program.buffers))]
        self._buffers = {n: self._buffer(program.buffers[n]) for n in order}

    def module(self) -> Any:
        program, order = self._program, [int(n) for n in self._rng.permutation(len(self._program.stages))]
        made = {n: self._stage(program.stages[n]) for n in order}
        body = made[0] if len(made) == 1 else tirx.SeqStmt([made[n] for n in range(len(made))])
        middle = [buffer for n, buffer in self._buffers.items() if program.buffers[n].role == "mid"]
        root = SBlockRealize([], True, SBlock([], [], [], "root", body, alloc_buffers=middle))
        parameters = program.parameters
        function = tirx.PrimFunc([self._buffers[n] for n in parameters], root)
        attributes: dict[str, Any] = {"tirx.noalias": True, "s_tir": True, "global_symbol": (name := self._name())}
        if program.free:
            attributes["layout_free_buffers"] = [parameters.index(n) for n in program.free]
        for key in self._shuffled(attributes):
            function = function.with_attr(key, attributes[key])
        return tvm.IRModule({name: function})

    def _name(self) -> str:
        return f"{NAME_BEGINS}{self._rng.integers(10**9)}"

    def _shuffled(self, values: Mapping[str, Any]) -> list[str]:
        return [str(name) for name in self._rng.permutation(sorted(values))]

    def _number(self, value: int) -> Any:
        return tirx.IntImm(self._program.index_dtype, value)

    def _buffer(self, buffer: Buffer) -> Any:
        shape = [self._number(n) for n in buffer.shape]
        steps = [1]
        for n in reversed(buffer.shape[1:]):
            steps.append(steps[-1] * n + (len(steps) == 1))
        strides = [self._number(n) for n in reversed(steps)] if buffer.padded else None
        return tirx.decl_buffer(shape, buffer.dtype, self._name(), strides=strides, layout=None)

    def _stage(self, stage: Stage) -> Any:
        n = len(stage.extents)
        made = {int(i): (Var(self._name(), self._program.index_dtype), self._name()) for i in self._rng.permutation(2 * n)}
        loops, own = [made[i][0] for i in range(n)], [made[n + i][0] for i in range(n)]
        extents = [self._number(extent) for extent in stage.extents]
        iterators = [
            tirx.IterVar(Range.from_min_extent(self._number(0), e), v, 2 if reduced else 0)
            for e, v, reduced in zip(extents, own, stage.reduced, strict=True)
        ]
        annotations = {"one": 1, "other": [1, 2]}
        block = SBlock(
            iterators,
            [self._region(load, own) for load in dict.fromkeys(nodes(stage.value, Load, Indirect))],
            [self._region(Load(stage.target, stage.indices), own)],
            self._name(),
            self._store(stage, own, reducing=bool(stage.reducer)),
            self._store(stage, own, reducing=False, start=True) if stage.reducer else None,
            annotations={name: annotations[name] for name in self._shuffled(annotations)},
        )
        body = SBlockRealize(loops, self._condition(stage.predicate, loops) if stage.predicate else True, block)
        for variable, extent in reversed(list(zip(loops, extents, strict=True))):
            body = tirx.For(variable, self._number(0), extent, tirx.ForKind.SERIAL, body)
        return body

    def _store(self, stage: Stage, own: Sequence[Any], *, reducing: bool, start: bool = False) -> Any:
        target, dtype = self._buffers[stage.target], self._program.buffers[stage.target].dtype
        indices = [self._index(i, own) for i in stage.indices]
        value = _constant(stage.start, dtype) if start else self._value(stage.value, dtype, own)
        if reducing:
            value = getattr(tirx, stage.reducer)(tirx.BufferLoad(target, indices), value)
        return tirx.BufferStore(target, value, indices)

    def _region(self, load: Any, own: Sequence[Any]) -> Any:
        """One element; all of what is read at a place that another buffer tells."""
        shape = self._program.buffers[load.buffer].shape
        places = [
            (self._number(0), n) if isinstance(i, Indirect) else (self._index(i, own), 1)
            for i, n in zip(load.indices, shape, strict=True)
        ]
        ranges = [Range.from_min_extent(start, self._number(extent)) for start, extent in places]
        return tirx.BufferRegion(self._buffers[load.buffer], ranges)

    def _value(self, node: Expression, dtype: str, own: Sequence[Any]) -> Any:
        match node:
            case Load():
                return self._load(node, own)
            case Constant():
                return _constant(node.value, dtype)
            case Unary():
                return getattr(tirx, node.function)(self._value(node.value, dtype, own))
            case Binary():
                return getattr(tirx, node.op)(*(self._value(n, dtype, own) for n in (node.left, node.right)))
            case Cast():
                return tirx.Cast(node.dtype, self._value(node.value, node.source, own))
            case Choice():
                choose = tirx.if_then_else if node.lazy else tirx.Select
                values = (self._value(n, dtype, own) for n in (node.then, node.otherwise))
                return choose(self._condition(node.conditions, own), *values)

    def _load(self, node: Load | Indirect, own: Sequence[Any]) -> Any:
        return tirx.BufferLoad(self._buffers[node.buffer], [self._index(i, own) for i in node.indices])

    def _index(self, node: Affine | Indirect, own: Sequence[Any]) -> Any:
        if isinstance(node, Indirect):
            return self._load(node, own)
        parts = [own[i] if c == 1 else tirx.Mul(own[i], self._number(c)) for i, c in node.terms]
        if node.constant or not parts:
            parts.append(self._number(node.constant))
        total = parts[0]
        for part in parts[1:]:
            total = tirx.Add(total, part)
        return tirx.FloorMod(total, self._number(node.modulus)) if node.modulus else total

    def _condition(self, conditions: Sequence[Compare], own: Sequence[Any]) -> Any:
        parts = [getattr(tirx, c.op)(self._index(c.left, own), self._number(c.right)) for c in conditions]
        total = parts[0]
        for part in parts[1:]:
            total = tirx.And(total, part)
        return total


def _constant(value: float, dtype: str) -> Any:
    return tirx.FloatImm(dtype, value) if dtype.startswith("float") else tirx.IntImm(dtype, int(value))
