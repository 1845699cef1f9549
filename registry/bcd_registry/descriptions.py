"""Canonical descriptions of workloads, read block by block. Pure.

`bcd_tuner.subgraph` writes them and says what their nodes mean. They may come from another release or a stranger: what is
not of the known form is not read, and never an error.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .model import Json, Workload, canonical_json, digest_of

REDUCTION = 2
"""The kind of an iterator that is reduced over."""

NAME_A_BUFFER = frozenset({"load", "store", "region", "match", "alloc", "decl", "buffer"})
"""Nodes whose first part is the number of a buffer."""

MAIN_BLOCK = "main block"
"""The block with a reduction and the most iterations, else the last one."""

_N_BLOCK_PARTS = 9
_N_NUMBER_PARTS = 3
_SHOWN_LENGTH = 60


@dataclass(frozen=True, slots=True)
class Stage:
    """One statement of a program, mostly a nest of loops around one block.

    Attributes:
        node: The statement; its variables and buffers are numbered in the order of their use in it.
        buffers: The program's numbers of its buffers, by its own.
        form: Digest of the statement without numbers.
        extents: Those of its first block's iterators.
        reduces: Whether one of these is reduced over.
    """

    node: Json
    buffers: tuple[int, ...]
    form: str
    extents: tuple[int, ...]
    reduces: bool

    @property
    def stores(self) -> frozenset[int]:
        """The program's numbers of the buffers that it writes."""
        return frozenset(self.buffers[node[1]] for node in nodes_of(self.node, "store"))

    def summary(self) -> str:
        """What it stores first, and over which extents."""
        stored = next((plain(shown(node[3])) for node in nodes_of(self.node, "store")), "a statement")
        return f"{stored} over {'x'.join(map(str, self.extents))}" if self.extents else stored


@dataclass(frozen=True, slots=True)
class Program:
    """A description that was read.

    Attributes:
        document: As it was written.
        shell: The root block without the stages and its buffers; None where there is none.
        main: Position of the main stage.
        arguments: Which argument a buffer is, from 1, by the buffer's number.
        free: Numbers of the buffers whose layout is free: weights.
    """

    document: Mapping[str, Json]
    shell: Json
    stages: tuple[Stage, ...]
    main: int
    arguments: Mapping[int, int]
    free: frozenset[int]

    def label(self, index: int) -> str:
        """What a stage is called: `main block`, `prologue 1`, `epilogue 2`."""
        if index == self.main:
            return MAIN_BLOCK
        return f"prologue {index + 1}" if index < self.main else f"epilogue {index - self.main}"

    def type_of(self, buffer: int) -> Json:
        """The type of a buffer."""
        return self.document["buffers"][buffer]

    def makers(self, buffer: int) -> list[int]:
        """The stages that write a buffer."""
        return [index for index, stage in enumerate(self.stages) if buffer in stage.stores]


def read_program(description: str) -> Program | None:
    """The program of a description; None when it is not of the known form."""
    try:
        document = json.loads(description)
        params = document["params"]
        body, shell = _unwrap(document["body"])
        scalars = {param[1][1]: -1 - i for i, param in enumerate(params) if param[0] == "scalar"}
        stages = tuple(_stage(statement, scalars) for statement in (body[1:] if kind_of(body) == "seq" else [body]))
        arguments = {param[1]: i for i, param in enumerate(params, start=1) if param[0] == "buffer"}
        positions = {int(position) + 1 for position in document["layout_free"]}
        free = frozenset(buffer for buffer, argument in arguments.items() if argument in positions)
        program = Program(document, shell, stages, _main(stages), arguments, free)
        known = all(kind_of(program.type_of(buffer)) == "type" for stage in stages for buffer in stage.buffers)
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return None
    return program if stages and known else None


def outline(workload: Workload) -> tuple[str, ...]:
    """What each block computes, without numbers, as a digest; empty for a description that cannot be read."""
    program = read_program(workload.description)
    return tuple(stage.form for stage in program.stages) if program else ()


def likeness(one: Sequence[str], other: Sequence[str]) -> float:
    """The share of blocks that two outlines have in common, from 0 to 1."""
    if not one or not other:
        return 0.0
    return 2.0 * (Counter(one) & Counter(other)).total() / (len(one) + len(other))


def nodes_of(node: Json, kind: str) -> Iterator[Json]:
    """Every node of a kind, in order, inner ones after outer ones."""
    if isinstance(node, list):
        if kind_of(node) == kind:
            yield node
        for child in node:
            yield from nodes_of(child, kind)


def kind_of(node: Json) -> str:
    """What a node is; empty for a list that is no node, and for everything else."""
    return node[0] if isinstance(node, list) and node and isinstance(node[0], str) else ""


def is_number(node: Json) -> bool:
    """Whether it is a constant: kind, dtype and value."""
    return kind_of(node) in ("i", "f") and len(node) == _N_NUMBER_PARTS


def shown(node: Json) -> str | int | float | bool | None:
    """A node for people: numbers stay such, everything else becomes text."""
    if isinstance(node, dict) or node == []:
        return canonical_json(node)
    if not isinstance(node, list):
        return node  # type: ignore[no-any-return]
    if is_number(node):
        return _decimal(node[2]) if node[0] == "f" else shown(node[2])
    if kind_of(node) == "shape":
        return "x".join(plain(shown(dim)) for dim in node[1:])
    kind = kind_of(node)
    return _expression(kind, node[1:] if kind else node)


def plain(value: Json) -> str:
    """A value as text that is not too long."""
    text = "none" if value is None else value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _SHOWN_LENGTH else f"{text[: _SHOWN_LENGTH - 1]}…"


def _unwrap(body: Json) -> tuple[Json, Json]:
    if kind_of(body) == "realize" and kind_of(body[3]) == "block" and len(body[3]) == _N_BLOCK_PARTS and not body[3][1]:
        block = body[3]
        return block[7], [*body[:3], block[:7]]
    return body, None


def _stage(statement: Json, scalars: Mapping[int, int]) -> Stage:
    numbering = _Numbering(scalars)
    node = numbering.apply(statement)
    block = next(nodes_of(node, "block"), None)
    axes = list(block[1]) if block else []
    return Stage(
        node=node,
        buffers=tuple(numbering.buffers),
        form=digest_of(canonical_json(_form(node))),
        extents=tuple(int(axis[4][2]) for axis in axes if axis[4][0] == "i"),
        reduces=any(axis[1] == REDUCTION for axis in axes),
    )


class _Numbering:
    """Numbers variables and buffers in the order they are met; scalar arguments keep the numbers they are given.

    The iterators of blocks get names that tell which axis they are.
    """

    def __init__(self, scalars: Mapping[int, int]) -> None:
        self.buffers: dict[int, int] = {}
        self._variables: dict[int, int | str] = dict(scalars)
        self._n_scalars = len(scalars)
        self._n_blocks = 0

    def apply(self, node: Json) -> Json:
        """The same node in the new numbers."""
        if isinstance(node, dict):
            return {name: self.apply(value) for name, value in node.items()}
        if not isinstance(node, list) or not node:
            return node
        kind = kind_of(node)
        if kind == "v":
            return [kind, self._variables.setdefault(node[1], len(self._variables) - self._n_scalars), *node[2:]]
        if kind in NAME_A_BUFFER:
            return [kind, self._buffer(node[1]), *map(self.apply, node[2:])]
        if kind == "block" and len(node) == _N_BLOCK_PARTS:
            self._name_axes(node[1])
            return [*map(self.apply, node[:-1]), sorted(map(self._buffer, node[-1]))]
        return [self.apply(child) for child in node]

    def _name_axes(self, iterators: Json) -> None:
        self._n_blocks += 1
        block = f"{self._n_blocks}." if self._n_blocks > 1 else ""
        for index, iterator in enumerate(iterators, start=1):
            if kind_of(iterator) == "iter":
                self._variables.setdefault(iterator[2][1], f"axis {block}{index}")

    def _buffer(self, number: int) -> int:
        return self.buffers.setdefault(number, len(self.buffers))


def _form(node: Json) -> Json:
    """The node without numbers."""
    if isinstance(node, dict):
        return {name: _form(value) for name, value in node.items()}
    if isinstance(node, list):
        return node[:2] if is_number(node) else [_form(child) for child in node]
    return None if isinstance(node, int | float) and not isinstance(node, bool) else node


def _main(stages: Sequence[Stage]) -> int:
    reducing = [index for index, stage in enumerate(stages) if stage.reduces]
    return max(reducing, key=lambda i: (math.prod(stages[i].extents), -i)) if reducing else len(stages) - 1


def _expression(kind: str, rest: list[Any]) -> str:
    first = plain(shown(rest[0])) if rest else ""
    if kind in ("buffer", "load"):
        return f"b{first}"
    if kind == "v":
        return first if first.startswith("axis ") else f"v{first}"
    if kind == "call":
        kind, rest = first.rpartition(".")[2], rest[3:]
    inner = ", ".join(plain(shown(child)) for child in rest)
    return f"{kind}({inner})" if kind else f"[{inner}]"


def _decimal(text: Json) -> float | str:
    try:
        value = float.fromhex(text)
    except (TypeError, ValueError, OverflowError):
        return plain(text)
    return value if math.isfinite(value) else plain(text)
