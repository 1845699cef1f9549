"""A small interpreter of random programs: it decides whether two of them compute the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bcd_registry.model import digest_of
from tests.tuner.random_programs import (
    Affine,
    Binary,
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
)

_NUMPY: Mapping[str, Any] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Min": np.minimum,
    "Max": np.maximum,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
    "EQ": np.equal,
    "NE": np.not_equal,
    "exp": np.exp,
    "sqrt": np.sqrt,
    "tanh": np.tanh,
    "abs": np.abs,
}


class OutOfBounds(Exception):
    """The program reads or writes outside of a buffer."""


def fingerprint(program: Program) -> str:
    """Equal for programs that take the same arguments and compute the same of a random input.

    Raises:
        OutOfBounds: It is no valid program.
    """
    buffers = [(program.buffers[n], n in program.free) for n in program.parameters]
    signature = [(b.shape, b.dtype, b.role, b.padded, free) for b, free in buffers]
    return digest_of(repr(signature), evaluate(program, inputs(program)).tobytes())


def inputs(program: Program) -> list[NDArray[Any]]:
    """Random values for the inputs, the same for each program of the same inputs."""
    rng = np.random.default_rng(11)
    found = []
    for n in program.parameters[:-1]:
        buffer = program.buffers[n]
        kind = np.dtype(buffer.dtype).kind
        values: NDArray[Any]
        if buffer.bound or kind == "u":
            values = rng.integers(0, buffer.bound or 9, buffer.shape)
        else:
            values = rng.standard_normal(buffer.shape) if kind == "f" else rng.integers(-9, 10, buffer.shape)
        found.append(np.asarray(values).astype(buffer.dtype))
    return found


def evaluate(program: Program, given: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """The output; what is not stored to is zero.

    Raises:
        OutOfBounds: It is no valid program.
    """
    arrays = dict(zip(program.parameters, given, strict=False))
    with np.errstate(all="ignore"):
        for stage in program.stages:
            target = program.buffers[stage.target]
            arrays[stage.target] = np.zeros(target.shape, dtype=target.dtype)
            _Interpreter(arrays, stage).run()
    return arrays[program.parameters[-1]]


class _Interpreter:
    """One stage over whole arrays: each iterator is an array of the shape of the loops."""

    def __init__(self, arrays: dict[int, NDArray[Any]], stage: Stage) -> None:
        self._arrays, self._stage = arrays, stage
        self._iterators = list(np.indices(stage.extents))

    def run(self) -> None:
        stage, out = self._stage, self._arrays[self._stage.target]
        live = self._all(stage.predicate, np.ones(stage.extents, dtype=bool))
        places = [np.broadcast_to(self._index(i, live), stage.extents) for i in stage.indices]
        _require_inside(places, out.shape, live)
        place = tuple(p[live] for p in places)
        values = np.broadcast_to(self._value(stage.value, out.dtype, live), stage.extents)[live]
        if stage.reducer:
            out[place] = np.array(stage.start).astype(out.dtype)
            _NUMPY[stage.reducer].at(out, place, values)
        else:
            out[place] = values

    def _value(self, node: Expression, dtype: Any, live: NDArray[np.bool_]) -> NDArray[Any]:
        match node:
            case Load():
                return self._load(node, live)
            case Constant():
                return np.array(node.value).astype(dtype)
            case Unary():
                return np.asarray(_NUMPY[node.function](self._value(node.value, dtype, live)))
            case Binary():
                left, right = (self._value(n, dtype, live) for n in (node.left, node.right))
                return np.asarray(_NUMPY[node.op](left, right))
            case Cast():
                return self._value(node.value, np.dtype(node.source), live).astype(node.dtype)
            case Choice():
                taken = self._all(node.conditions, np.ones(live.shape, dtype=bool))
                reads = (live & taken, live & ~taken) if node.lazy else (live, live)
                then, otherwise = (self._value(n, dtype, r) for n, r in zip((node.then, node.otherwise), reads, strict=True))
                return np.where(taken, then, otherwise)

    def _load(self, node: Load | Indirect, live: NDArray[np.bool_]) -> NDArray[Any]:
        array = self._arrays[node.buffer]
        places = [np.broadcast_to(self._index(i, live), live.shape) for i in node.indices]
        _require_inside(places, array.shape, live)
        clipped = (np.clip(p, 0, n - 1) for p, n in zip(places, array.shape, strict=True))
        return np.asarray(array[tuple(clipped)])

    def _index(self, node: Affine | Indirect, live: NDArray[np.bool_]) -> NDArray[Any]:
        if isinstance(node, Indirect):
            return self._load(node, live)
        total = np.asarray(node.constant)
        for iterator, coefficient in node.terms:
            if iterator >= len(self._iterators):
                raise OutOfBounds
            total = total + self._iterators[iterator] * coefficient
        return total % node.modulus if node.modulus else total

    def _all(self, conditions: Sequence[Compare], live: NDArray[np.bool_]) -> NDArray[np.bool_]:
        for condition in conditions:
            live = live & _NUMPY[condition.op](self._index(condition.left, live), condition.right)
        return live


def _require_inside(places: Sequence[NDArray[Any]], shape: Sequence[int], live: NDArray[np.bool_]) -> None:
    if any((((p < 0) | (p >= n)) & live).any() for p, n in zip(places, shape, strict=True)):
        raise OutOfBounds
