"""One change to a random program, of a kind that mostly makes it compute something else."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tests.tuner.program_interpreter import OutOfBounds, fingerprint
from tests.tuner.random_programs import (
    BINARY,
    COMPARISONS,
    DTYPES,
    REDUCERS,
    UNARY,
    Affine,
    Binary,
    Cast,
    Choice,
    Compare,
    Constant,
    Load,
    Program,
    Stage,
    Unary,
    generate,
    put,
    sites,
)

_MOST_ATTEMPTS = 1000


def different_pair(seed: int) -> tuple[str, Program, Program]:
    """A program, one that computes something else after one change, and the kind of the change, which comes first."""
    program, rng = generate(seed), np.random.default_rng([seed, 1])
    expected = fingerprint(program)
    for _ in range(_MOST_ATTEMPTS):
        kind = CHANGES[int(rng.integers(len(CHANGES)))]
        other = generate(seed, int(rng.integers(6))) if kind == "extent" else _CHANGES[kind](program, rng)
        try:
            if other is not None and other != program and fingerprint(other) != expected:
                return kind, program, other
        except OutOfBounds:
            continue
    raise AssertionError(f"no change of program {seed} computes something else")


Change = Callable[[Program, np.random.Generator], Program | None]


def _at_one(*kinds: type) -> Callable[[Callable[[Any, Program, np.random.Generator], Any]], Change]:
    """A change to one part of these kinds, any of them."""

    def made(change: Callable[[Any, Program, np.random.Generator], Any]) -> Change:
        def changed(program: Program, rng: np.random.Generator) -> Program | None:
            found = list(sites(program.stages, *kinds))
            if not found:
                return None
            way, node = found[int(rng.integers(len(found)))]
            new: Program = put(program, ("stages", *way), change(node, program, rng))
            return new

        return changed

    return made


def _another(value: str, values: Sequence[str], rng: np.random.Generator) -> str:
    others = [v for v in values if v != value]
    return others[int(rng.integers(len(others)))]


@_at_one(Binary, Unary, Compare, Stage)
def _other_operator(node: Any, program: Program, rng: np.random.Generator) -> Any:
    match node:
        case Unary():
            return dataclasses.replace(node, function=_another(node.function, UNARY, rng))
        case Stage():
            return dataclasses.replace(node, reducer=_another(node.reducer, REDUCERS, rng)) if node.reducer else node
        case Compare():
            return dataclasses.replace(node, op=_another(node.op, COMPARISONS, rng))
    return dataclasses.replace(node, op=_another(node.op, BINARY, rng))


@_at_one(Constant, Compare, Stage)
def _other_constant(node: Any, program: Program, rng: np.random.Generator) -> Any:
    step = int(rng.choice((-1, 1, 2)))
    match node:
        case Stage():
            return dataclasses.replace(node, start=node.start + abs(step)) if node.reducer else node
        case Compare():
            return dataclasses.replace(node, right=node.right + step)
    return Constant(node.value + abs(step))


@_at_one(Affine)
def _other_index(node: Affine, program: Program, rng: np.random.Generator) -> Affine:
    how = int(rng.integers(4))
    if how == 0 or not node.terms:
        return dataclasses.replace(node, constant=node.constant + int(rng.choice((-1, 1))))
    place = int(rng.integers(len(node.terms)))
    iterator, coefficient = node.terms[place]
    if how == 1:
        coefficient += int(rng.choice((-2, -1, 1)))
    elif how == 2:
        iterator = max(0, iterator + int(rng.choice((-1, 1))))
    else:
        return dataclasses.replace(node, modulus=node.modulus + int(rng.integers(1, 4)))
    return dataclasses.replace(node, terms=put(node.terms, (place,), (iterator, coefficient)))


@_at_one(Binary, Choice, Load)
def _other_operand(node: Any, program: Program, rng: np.random.Generator) -> Any:
    match node:
        case Binary():
            return Binary(node.op, node.right, node.left)
        case Choice():
            return dataclasses.replace(node, then=node.otherwise, otherwise=node.then)
    like = dataclasses.replace(program.buffers[node.buffer], role="", padded=False)
    others = [n for n, b in enumerate(program.buffers) if dataclasses.replace(b, role="", padded=False) == like]
    known = [n for n in others if n < node.buffer or program.buffers[n].role == "in"]
    return dataclasses.replace(node, buffer=int(rng.choice(known))) if known else node


@_at_one(Stage)
def _other_predicate(node: Stage, program: Program, rng: np.random.Generator) -> Stage:
    if node.predicate:
        return dataclasses.replace(node, predicate=())
    axis = int(rng.integers(len(node.extents)))
    return dataclasses.replace(node, predicate=(Compare("LT", Affine(((axis, 1),)), node.extents[axis] - 1),))


def _other_dtype(program: Program, rng: np.random.Generator) -> Program:
    """One dtype becomes another wherever it is; what only indexes keeps its own."""
    old = program.buffers[program.stages[0].target].dtype
    kinds = [d for d in dict.fromkeys(DTYPES) if d.startswith("float") == old.startswith("float")]
    new = _another(old, kinds, rng)
    buffers = tuple(dataclasses.replace(b, dtype=new) if b.dtype == old and not b.bound else b for b in program.buffers)
    stages: Any = program.stages
    for way, node in list(sites(stages, Cast)):
        ends = {name: new if getattr(node, name) == old else getattr(node, name) for name in ("source", "dtype")}
        stages = put(stages, way, dataclasses.replace(node, **ends))
    return dataclasses.replace(program, buffers=buffers, stages=stages)


def _other_weights(program: Program, rng: np.random.Generator) -> Program | None:
    """One more, or one less, of the inputs whose layout is free."""
    given = program.parameters[:-1]
    chosen = given[int(rng.integers(len(given)))]
    return dataclasses.replace(program, free=tuple(sorted({chosen} ^ set(program.free))))


def _other_strides(program: Program, rng: np.random.Generator) -> Program:
    chosen = program.parameters[int(rng.integers(len(program.parameters)))]
    buffer = program.buffers[chosen]
    return dataclasses.replace(
        program, buffers=put(program.buffers, (chosen,), dataclasses.replace(buffer, padded=not buffer.padded))
    )


_CHANGES: Mapping[str, Change] = {
    "operator": _other_operator,
    "constant": _other_constant,
    "index": _other_index,
    "operand": _other_operand,
    "predicate": _other_predicate,
    "dtype": _other_dtype,
    "weight": _other_weights,
    "strides": _other_strides,
}
"""One change of each kind; None where the program has no place for it."""

CHANGES = (*_CHANGES, "extent")  # an extent is changed in the making of the program
