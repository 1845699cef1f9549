"""Traces that move between modules which differ in names only.

A trace addresses blocks by name. The registry keeps the traces of canonical modules (`tasks.canonicalise`), while TVM's own
scripts tune modules under the names that lowering gave them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm.ir import IRModule, Var
from tvm.s_tir import SBlock, Schedule

from bcd_registry.errors import CorruptBlob
from bcd_registry.model import Json

from .replay import replay, trace_as_json
from .space import read_space
from .tasks import canonicalise

_GET_BLOCK = "GetSBlock"
_REMOVE_ANNOTATION = "Unannotate"

_CUSTOM_RULE = "schedule_rule"
"""An annotation that a design space removes, and that canonical modules do not have."""


def names_in(mod: IRModule) -> tuple[str, ...]:
    """Names of blocks and variables, buffers included: what structural equality ignores and traces depend on."""
    variables: list[str] = []
    for function in mod.functions.values():
        tvm_ffi.structural_walk(function, (Var, lambda variable: variables.append(str(variable.name))))
    return (*block_names(mod), *variables)


def block_names(mod: IRModule) -> list[str]:
    """Names of the blocks in the order of a walk, inner ones first."""
    return [str(block.name_hint) for block in _blocks(mod)]


def carry(trace: Json, source: IRModule, mod: IRModule) -> Schedule:
    """Replay on `mod` a trace that was made on `source`, the same program under other names.

    A block that the trace itself has added is named after one that was there, so it is found by its place, which is the same
    in both modules at every step.

    Raises:
        CorruptBlob: The trace does not fit.
    """
    if _CUSTOM_RULE not in _annotations(mod):
        trace = _without_custom_rules(trace)
    if names_in(source) == names_in(mod):
        return replay(mod, trace)
    instructions, decisions = trace
    carried, names = list(instructions), _renamed(source, mod)
    for i, (kind, inputs, attributes, outputs) in enumerate(instructions):
        if kind != _GET_BLOCK:
            continue
        name, *others = attributes
        if name not in names:
            there, here = _first(i, instructions, decisions), _first(i, carried, decisions)
            names |= _renamed(replay(source, there).mod, replay(mod, here).mod)
        if name not in names:
            raise CorruptBlob(f"the trace does not fit: it asks for a block `{name}`, which is not there")
        carried[i] = [kind, inputs, [names[name], *others], outputs]
    return replay(mod, [carried, decisions])


def canonical_sketches(mod: IRModule, schedules: Sequence[Schedule]) -> list[str]:
    """The sketches that design spaces of a module have under canonical names, the registry's own."""
    canonical = canonicalise(mod)
    return [read_space(carry(trace_as_json(schedule), mod, canonical)).sketch for schedule in schedules]


def _first(n: int, instructions: list[Json], decisions: list[Json]) -> Json:
    """The trace of the first `n` instructions."""
    return [instructions[:n], [decision for decision in decisions if decision[0] < n]]


def _without_custom_rules(trace: Json) -> Json:
    """The trace without what removes that annotation; decisions name their instruction by its number."""
    instructions, decisions = trace
    kept = [
        i
        for i, (kind, _, attributes, _) in enumerate(instructions)
        if (kind, attributes) != (_REMOVE_ANNOTATION, [_CUSTOM_RULE])
    ]
    numbers = {old: new for new, old in enumerate(kept)}
    return [[instructions[i] for i in kept], [[numbers[i], decision] for i, decision in decisions]]


def _renamed(source: IRModule, mod: IRModule) -> dict[str, str]:
    """Names of the blocks of `mod` by those of the blocks at the same places in `source`."""
    names, others = block_names(source), block_names(mod)
    if len(names) != len(others):
        raise CorruptBlob("the trace does not fit: the modules have not the same blocks")
    return dict(zip(names, others, strict=True))


def _annotations(mod: IRModule) -> set[str]:
    return {str(name) for block in _blocks(mod) for name in block.annotations}


def _blocks(mod: IRModule) -> list[Any]:
    blocks: list[Any] = []
    for function in mod.functions.values():
        tvm_ffi.structural_walk(function, (SBlock, blocks.append))
    return blocks
