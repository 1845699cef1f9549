"""Where two workloads differ: everything, the most telling first. Pure.

Programs are compared block by block, each in a numbering of its own, so that one block more at the end does not make all the
others differ.
"""

from __future__ import annotations

import difflib
import enum
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeGuard

from .descriptions import MAIN_BLOCK, NAME_A_BUFFER, REDUCTION, Program, Stage, is_number, kind_of, plain, read_program, shown
from .model import Json, Workload, canonical_json, digest_of

_AXES = MappingProxyType({0: "spatial", REDUCTION: "reduction"})
_N_USUAL_TYPE_PARTS = 4
_NOT_THERE = object()


class Aspect(enum.StrEnum):
    """What of a workload may differ, the most telling first."""

    OP = "op"
    BLOCK = "block"
    EPILOGUE = "epilogue"
    EXPRESSION = "expression"
    DTYPE = "dtype"
    AXIS = "axis"
    EXTENT = "extent"
    WEIGHT = "weight"
    CONSTANT = "constant"
    PREDICATE = "predicate"
    INITIAL = "initial value"
    ARGUMENTS = "arguments"
    ANNOTATION = "annotation"
    ATTRIBUTE = "attribute"
    BUFFER = "buffer"
    LAYOUT = "layout"
    SCHEME = "scheme"
    STRUCTURE = "structure"
    LOOP = "loop"
    SHAPE = "shape"
    ACCESS = "access"


_MINOR = frozenset({Aspect.LOOP, Aspect.SHAPE, Aspect.ACCESS})
"""What mostly follows from another difference."""


@dataclass(frozen=True, slots=True)
class WorkloadDifference:
    """One thing that differs between two workloads.

    Attributes:
        block: `main block`, or which one before or after it: `prologue 1`, `epilogue 2`; empty for the whole.
        part: Which one of the block or the whole: `spatial`, `argument 2`, an attribute's name; empty where there is one.
        index: Which axis of the block, from 1; 0 where it is none.
        there: The value in the first workload; None when it has none.
        here: The value in the second.
    """

    aspect: Aspect
    block: str
    part: str
    index: int
    there: Json
    here: Json

    @property
    def where(self) -> str:
        """The place in words; empty for the whole."""
        axis = f"{self.part} axis {self.index}".strip() if self.index else self.part
        return ", ".join(filter(None, (self.block, axis)))

    def describe(self) -> str:
        """Both values for people. One line."""
        if self.aspect in (Aspect.BLOCK, Aspect.EPILOGUE) and (self.there is None or self.here is None):
            return f"{self.block} only {'here' if self.there is None else 'there'}: {plain(self.here or self.there)}"
        subject = f"{self.where}: {self.aspect}" if self.where else self.aspect
        return f"{subject} {plain(self.there)} there, {plain(self.here)} here"


def compare_workloads(there: Workload, here: Workload) -> list[WorkloadDifference]:
    """Everything that differs, the most telling first. Empty if and only if the descriptions are equal.

    Which buffer a block reads is compared only where the blocks of the two are as many.
    """
    if there.description == here.description:
        return []
    label = [_whole(Aspect.OP, there.op, here.op)] if there.op != here.op else []
    unique = dict.fromkeys([*label, *_compare_descriptions(there.description, here.description)])
    order = list(Aspect)
    return sorted(unique, key=lambda d: (order.index(d.aspect), d.block != MAIN_BLOCK))


def in_words(differences: Sequence[WorkloadDifference], *, brief: bool = True) -> list[str]:
    """A phrase for each kind of difference, axes of one block together.

    Args:
        brief: Only count what mostly follows from the others: shapes, accesses and loops, and the axes of other blocks.
    """
    telling = [d for d in differences if not (brief and _is_minor(d, differences))] or list(differences)
    phrases = list(dict.fromkeys(_phrases(telling)))
    n_others = len(differences) - len(telling)
    return [*phrases, f"{n_others} smaller difference{'s' if n_others > 1 else ''}"] if n_others else phrases


@dataclass(frozen=True, slots=True)
class _Place:
    """Where in a program the walk is, and what a difference there is called."""

    aspect: Aspect
    block: str = ""
    part: str = ""
    index: int = 0

    def difference(self, there: Json, here: Json) -> WorkloadDifference:
        """The difference of two nodes here, as short as it can be told."""
        values = [None if node is _NOT_THERE else shown(node) for node in (there, here)]
        if values[0] == values[1]:
            values = [None if node is _NOT_THERE else canonical_json(node) for node in (there, here)]
        in_epilogue = self.aspect is Aspect.EXPRESSION and self.block.startswith("epilogue")
        aspect = Aspect.EPILOGUE if in_epilogue else self.aspect
        return WorkloadDifference(aspect, self.block, self.part, self.index, *values)


_PARTS: Mapping[str, Mapping[int, Aspect]] = MappingProxyType(
    {
        "for": {1: Aspect.LOOP, 3: Aspect.LOOP, 4: Aspect.LOOP, 5: Aspect.LOOP, 6: Aspect.LOOP, 7: Aspect.ANNOTATION},
        "iter": {1: Aspect.AXIS, 3: Aspect.AXIS, 4: Aspect.EXTENT},
        "block": {
            **{2: Aspect.ACCESS, 3: Aspect.ACCESS, 4: Aspect.BUFFER},
            **{5: Aspect.ANNOTATION, 6: Aspect.INITIAL, 8: Aspect.BUFFER},
        },
        "realize": {1: Aspect.ACCESS, 2: Aspect.PREDICATE},
        "store": {2: Aspect.ACCESS, 3: Aspect.EXPRESSION},
        "load": {2: Aspect.ACCESS},
        "region": {2: Aspect.ACCESS},
        "cast": {1: Aspect.DTYPE},
        "call": {2: Aspect.DTYPE},
        "v": {2: Aspect.DTYPE},
    }
)
"""What the parts of a node are about, where it is something else than the node itself."""

_Pair = tuple[int | None, int | None]
"""Positions of a stage there and of the one that stands for it here; None where there is none."""


def _compare_descriptions(there: str, here: str) -> list[WorkloadDifference]:
    """By blocks where both can be read so, else node by node."""
    try:
        old, new = read_program(there), read_program(here)
        found = list(_compare_programs(old, new)) if old and new else []
        found = found or list(_walk(json.loads(there), json.loads(here), _Place(Aspect.STRUCTURE)))
    except (ValueError, RecursionError):  # not JSON, or nested too deep
        found = []
    return found or [_whole(Aspect.STRUCTURE, digest_of(there)[:12], digest_of(here)[:12])]


def _compare_programs(there: Program, here: Program) -> Iterator[WorkloadDifference]:
    pairs = list(_pairs(there, here))
    for old, new in pairs:
        if old is not None and new is not None:
            yield from _compare_stages(there.stages[old], here.stages[new], here.label(new))
        elif old is not None:
            yield _only_one(there.label(old), there.stages[old].summary(), None)
        elif new is not None:
            yield _only_one(here.label(new), None, here.stages[new].summary())
    yield from _compare_buffers(there, here, pairs)
    yield from _compare_frames(there, here)


def _compare_stages(there: Stage, here: Stage, label: str) -> list[WorkloadDifference]:
    """Loops that say what an axis says already are left out."""
    found = list(_walk(there.node, here.node, _Place(Aspect.EXPRESSION, label)))
    axes = {(d.there, d.here) for d in found if d.aspect is Aspect.EXTENT}
    return [d for d in found if d.aspect is not Aspect.LOOP or (d.there, d.here) not in axes]


def _only_one(label: str, there: str | None, here: str | None) -> WorkloadDifference:
    aspect = Aspect.EPILOGUE if label.startswith("epilogue") else Aspect.BLOCK
    return WorkloadDifference(aspect, label, "", 0, there, here)


def _compare_buffers(there: Program, here: Program, pairs: Sequence[_Pair]) -> Iterator[WorkloadDifference]:
    """Types, free layouts and, where all blocks are paired, where each comes from; every two buffers once."""
    both = [(old, new) for old, new in pairs if old is not None and new is not None]
    as_many = len(both) == len(pairs) and len(there.arguments) == len(here.arguments)
    seen: set[tuple[int, int]] = set()
    for old, new in both:
        for before, after in zip(there.stages[old].buffers, here.stages[new].buffers, strict=False):
            if (before, after) in seen:
                continue
            seen.add((before, after))
            name = _buffer_name(here, after)
            yield from _compare_types(there.type_of(before), here.type_of(after), name)
            if (before in there.free) != (after in here.free):
                layouts = [_layout(buffer in program.free) for program, buffer in ((there, before), (here, after))]
                yield WorkloadDifference(Aspect.WEIGHT, "", name, 0, *layouts)
            origins = _origin(there, before, dict(both)), _origin(here, after, {i: i for _, i in both})
            if as_many and origins[0] != origins[1]:
                yield WorkloadDifference(Aspect.BUFFER, here.label(new), "", 0, *origins)


def _compare_types(there: Json, here: Json, name: str) -> Iterator[WorkloadDifference]:
    """Of two buffers: element, shape as a whole, scope, and how it lies in memory."""
    aspects = (Aspect.STRUCTURE, Aspect.DTYPE, Aspect.SHAPE, Aspect.LAYOUT)
    parts = [[*type_[:_N_USUAL_TYPE_PARTS], type_[_N_USUAL_TYPE_PARTS:]] for type_ in (there, here)]
    for aspect, old, new in itertools.zip_longest((*aspects, Aspect.LAYOUT), *parts, fillvalue=_NOT_THERE):
        if not _same(old, new):
            yield _Place(aspect if isinstance(aspect, Aspect) else Aspect.LAYOUT, part=name).difference(old, new)


def _compare_frames(there: Program, here: Program) -> Iterator[WorkloadDifference]:
    """What is around the blocks."""
    old, new = there.document, here.document
    yield from _walk(old.get("scheme"), new.get("scheme"), _Place(Aspect.SCHEME))
    yield from _walk(old.get("attrs"), new.get("attrs"), _Place(Aspect.ATTRIBUTE))
    yield from _walk(there.shell, here.shell, _Place(Aspect.STRUCTURE))
    kinds = [[kind_of(param) for param in document["params"]] for document in (old, new)]
    if kinds[0] != kinds[1]:
        yield _whole(Aspect.ARGUMENTS, *map(_counted, kinds))
    scalars = [[param[1][2:] for param in document["params"] if kind_of(param) == "scalar"] for document in (old, new)]
    if len(scalars[0]) == len(scalars[1]):
        yield from _walk(*scalars, _Place(Aspect.DTYPE, part="scalar argument"))


def _walk(there: Json, here: Json, place: _Place) -> Iterator[WorkloadDifference]:
    """Both trees in step, down to the first nodes that are not of one kind and length."""
    if isinstance(there, dict) and isinstance(here, dict):
        for name in sorted({*there, *here}):
            inner = replace(place, part=f"{place.part}.{name}".removeprefix("."))
            if name in there and name in here:
                yield from _walk(there[name], here[name], inner)
            else:
                yield inner.difference(there.get(name, _NOT_THERE), here.get(name, _NOT_THERE))
    elif _alike(there, here):
        yield from _walk_node(there, here, place)
    elif not _same(there, here):
        yield place.difference(there, here)


def _walk_node(there: list[Json], here: list[Json], place: _Place) -> Iterator[WorkloadDifference]:
    kind = kind_of(there)
    if is_number(there):
        yield from _walk_number(there, here, place)
        return
    parts = _PARTS.get(kind, {})
    for position, (old, new) in enumerate(zip(there, here, strict=True)):
        inner = replace(place, aspect=parts.get(position, place.aspect))
        if kind == "block" and position == 1:
            yield from _walk_axes(old, new, replace(place, aspect=Aspect.AXIS))
        elif kind == "iter" and position == 1:
            yield from _walk(*(_AXES.get(value, value) if type(value) is int else value for value in (old, new)), inner)
        elif position == 1 and (kind in NAME_A_BUFFER or kind == "v"):
            if not _same(old, new):
                yield (inner if kind == "v" else replace(place, aspect=Aspect.BUFFER)).difference(there[:2], here[:2])
        else:
            yield from _walk(old, new, inner)


def _walk_number(there: list[Json], here: list[Json], place: _Place) -> Iterator[WorkloadDifference]:
    if not _same(there[1], here[1]):
        yield replace(place, aspect=Aspect.DTYPE).difference(there[1], here[1])
    if not _same(there[2], here[2]):
        constant = place.aspect is Aspect.EXPRESSION
        yield (replace(place, aspect=Aspect.CONSTANT) if constant else place).difference([*here[:2], there[2]], here)


def _walk_axes(there: Json, here: Json, place: _Place) -> Iterator[WorkloadDifference]:
    if not _alike(there, here):
        if not _same(there, here):
            yield place.difference(there, here)
        return
    for index, (old, new) in enumerate(zip(there, here, strict=True), start=1):
        kind = new[1] if isinstance(new, list) and len(new) > 1 else None
        part = _AXES.get(kind, "") if isinstance(kind, int) else ""
        yield from _walk(old, new, replace(place, part=part, index=index))


def _alike(there: Json, here: Json) -> TypeGuard[list[Json]]:
    """Whether both are lists, or nodes of one kind, of one length."""
    both = isinstance(there, list) and isinstance(here, list)
    return both and kind_of(there) == kind_of(here) and len(there) == len(here)


def _same(there: Json, here: Json) -> bool:
    """Equal as JSON: unlike in Python, 1 is neither true nor 1.0."""
    if isinstance(there, list) and isinstance(here, list):
        return len(there) == len(here) and all(map(_same, there, here))
    if isinstance(there, dict) and isinstance(here, dict):
        return there.keys() == here.keys() and all(_same(there[name], here[name]) for name in there)
    return type(there) is type(here) and bool(there == here)


def _pairs(there: Program, here: Program) -> Iterator[_Pair]:
    """Stages that stand for each other: the main ones, and before and after them those of one form, else in order."""
    old, new = ([stage.form for stage in program.stages] for program in (there, here))
    if old == new:
        yield from ((i, i) for i in range(len(new)))
        return
    yield from _aligned(old, range(there.main), new, range(here.main))
    yield there.main, here.main
    yield from _aligned(old, range(there.main + 1, len(old)), new, range(here.main + 1, len(new)))


def _aligned(old: Sequence[str], there: Sequence[int], new: Sequence[str], here: Sequence[int]) -> Iterator[_Pair]:
    matcher = difflib.SequenceMatcher(None, [old[i] for i in there], [new[i] for i in here], autojunk=False)
    for _, first, last, other_first, other_last in matcher.get_opcodes():
        yield from itertools.zip_longest(there[first:last], here[other_first:other_last])


def _buffer_name(program: Program, buffer: int) -> str:
    if buffer in program.arguments:
        return f"argument {program.arguments[buffer]}"
    makers = program.makers(buffer)
    return f"what {program.label(makers[0])} gives" if makers else f"buffer {buffer}"


def _origin(program: Program, buffer: int, positions: Mapping[int, int]) -> str:
    """Where a buffer comes from, its blocks by their positions here."""
    if buffer in program.arguments:
        return f"argument {program.arguments[buffer]}"
    makers = [str(positions[index] + 1) for index in program.makers(buffer) if index in positions]
    return f"block {'+'.join(makers)}" if makers else f"buffer {buffer}"


def _layout(free: bool) -> str:
    return "of free layout" if free else "of fixed layout"


def _counted(kinds: Sequence[str]) -> str:
    return " and ".join(f"{n} {kind}{'s' if n > 1 else ''}" for kind, n in Counter(kinds).items()) or "none"


def _phrases(differences: Sequence[WorkloadDifference]) -> Iterator[str]:
    for aspect, group in itertools.groupby(differences, key=lambda d: d.aspect):
        if aspect is Aspect.EXTENT:
            for (block, kind), axes in itertools.groupby(group, key=lambda d: (d.block, d.part)):
                yield _axes_in_words(block, kind, list(axes))
        elif aspect is Aspect.DTYPE:
            yield from (f"dtype {plain(d.there)} there, {plain(d.here)} here" for d in group)
        else:
            yield from (d.describe() for d in group)


def _axes_in_words(block: str, kind: str, axes: Sequence[WorkloadDifference]) -> str:
    numbers = ", ".join(str(axis.index) for axis in axes)
    there, here = ("x".join(map(plain, values)) for values in ([a.there for a in axes], [a.here for a in axes]))
    return f"{block}: {kind} {'axis' if len(axes) == 1 else 'axes'} {numbers}: {there} there, {here} here"


def _is_minor(difference: WorkloadDifference, among: Sequence[WorkloadDifference]) -> bool:
    if difference.aspect is Aspect.EXTENT and difference.block != MAIN_BLOCK:
        return any(d.aspect is Aspect.EXTENT and d.block == MAIN_BLOCK for d in among)
    return difference.aspect in _MINOR


def _whole(aspect: Aspect, there: Json, here: Json) -> WorkloadDifference:
    return WorkloadDifference(aspect, "", "", 0, there, here)
