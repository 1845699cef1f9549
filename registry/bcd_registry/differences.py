"""What differs between two workloads, as values and in words, and the walk over two nodes that finds it. Pure."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeGuard

from .descriptions import MAIN_BLOCK, NAME_A_BUFFER, REDUCTION, is_number, kind_of, plain, shown
from .model import Json, canonical_json

NOT_THERE = object()
"""What stands for a node that one side lacks."""

_AXES = MappingProxyType({0: "spatial", REDUCTION: "reduction"})
_MOST_PHRASES = 6


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
        subject = f"{self.where}: {self.aspect}" if self.where else str(self.aspect)
        if self.aspect is Aspect.EPILOGUE:
            subject = f"{self.block}:"
        return f"{subject} {plain(self.there)} there, {plain(self.here)} here"


def in_words(differences: Sequence[WorkloadDifference], *, brief: bool = True) -> list[str]:
    """A phrase for each kind of difference, axes of one block together.

    Args:
        brief: Only count what mostly follows from the others: shapes, accesses and loops, and the axes of other blocks;
            and what is too much for a paragraph.
    """
    telling = [d for d in differences if not (brief and _is_minor(d, differences))] or list(differences)
    phrases = list(dict.fromkeys(_phrases(telling)))
    n_others = len(differences) - len(telling)
    if brief and len(phrases) > _MOST_PHRASES:
        n_others += len(phrases) - _MOST_PHRASES
        del phrases[_MOST_PHRASES:]
    return [*phrases, f"{n_others} smaller difference{'s' if n_others > 1 else ''}"] if n_others else phrases


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a program the walk is, and what a difference there is called."""

    aspect: Aspect
    block: str = ""
    part: str = ""
    index: int = 0

    def difference(self, there: Json, here: Json) -> WorkloadDifference:
        """The difference of two nodes here, as short as it can be told."""
        values = [None if node is NOT_THERE else shown(node) for node in (there, here)]
        if values[0] == values[1]:
            values = [None if node is NOT_THERE else canonical_json(node) for node in (there, here)]
        in_epilogue = self.aspect is Aspect.EXPRESSION and self.block.startswith("epilogue")
        aspect = Aspect.EPILOGUE if in_epilogue else self.aspect
        return WorkloadDifference(aspect, self.block, self.part, self.index, *values)


_PARTS: Mapping[str, Mapping[int, Aspect]] = MappingProxyType(
    {
        "for": {1: Aspect.LOOP, 3: Aspect.LOOP, 4: Aspect.LOOP, 5: Aspect.LOOP, 6: Aspect.LOOP, 7: Aspect.ANNOTATION},
        "iter": {1: Aspect.AXIS, 3: Aspect.AXIS, 4: Aspect.EXTENT},
        "block": {
            2: Aspect.ACCESS,
            3: Aspect.ACCESS,
            4: Aspect.BUFFER,
            5: Aspect.ANNOTATION,
            6: Aspect.INITIAL,
            8: Aspect.BUFFER,
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


def walk(there: Json, here: Json, place: Place) -> Iterator[WorkloadDifference]:
    """Both trees in step, down to the first nodes that are not of one kind and length."""
    if isinstance(there, dict) and isinstance(here, dict):
        for name in sorted({*there, *here}):
            inner = replace(place, part=f"{place.part}.{name}".removeprefix("."))
            if name in there and name in here:
                yield from walk(there[name], here[name], inner)
            else:
                yield inner.difference(there.get(name, NOT_THERE), here.get(name, NOT_THERE))
    elif _alike(there, here):
        yield from _walk_node(there, here, place)
    elif not same_json(there, here):
        yield place.difference(there, here)


def _walk_node(there: list[Json], here: list[Json], place: Place) -> Iterator[WorkloadDifference]:
    kind = kind_of(there)
    if is_number(there):
        yield from _walk_number(there, here, place)
        return
    parts = _PARTS.get(kind, {})
    for position, (old, new) in enumerate(zip(there, here, strict=True)):
        inner = replace(place, aspect=parts.get(position, place.aspect))
        if kind == "block" and position == 1:
            yield from _walk_axes(old, new, replace(place, aspect=Aspect.AXIS))
        elif kind == "call" and inner.aspect is Aspect.DTYPE and len(old) == len(new):
            for one, other in zip(old, new, strict=True):
                yield from walk(one, other, inner)
        elif kind == "iter" and position == 1:
            yield from walk(_axis_kind(old), _axis_kind(new), inner)
        elif position == 1 and (kind in NAME_A_BUFFER or kind == "v"):
            if not same_json(old, new):
                yield (inner if kind == "v" else replace(place, aspect=Aspect.BUFFER)).difference(there[:2], here[:2])
        else:
            yield from walk(old, new, inner)


def _walk_number(there: list[Json], here: list[Json], place: Place) -> Iterator[WorkloadDifference]:
    if not same_json(there[1], here[1]):
        yield replace(place, aspect=Aspect.DTYPE).difference(there[1], here[1])
    if not same_json(there[2], here[2]):
        constant = place.aspect is Aspect.EXPRESSION
        yield (replace(place, aspect=Aspect.CONSTANT) if constant else place).difference([*here[:2], there[2]], here)


def _walk_axes(there: Json, here: Json, place: Place) -> Iterator[WorkloadDifference]:
    if not _alike(there, here):
        if not same_json(there, here):
            yield replace(place, aspect=Aspect.AXIS).difference(_axes(there), _axes(here))
        return
    for index, (old, new) in enumerate(zip(there, here, strict=True), start=1):
        kind = new[1] if isinstance(new, list) and len(new) > 1 else None
        part = _AXES.get(kind, "") if isinstance(kind, int) else ""
        yield from walk(old, new, replace(place, part=part, index=index))


def _axis_kind(value: Json) -> Json:
    return _AXES.get(value, value) if type(value) is int else value


def _axes(iterators: Json) -> str:
    """`spatial 56, reduction 64`."""
    kinds = [(_AXES.get(i[1], "other"), plain(shown(i[-1]))) for i in iterators if kind_of(i) == "iter"]
    return ", ".join(f"{kind} {extent}" for kind, extent in kinds) or "none"


def _alike(there: Json, here: Json) -> TypeGuard[list[Json]]:
    """Whether both are lists, or nodes of one kind, of one length."""
    both = isinstance(there, list) and isinstance(here, list)
    return both and kind_of(there) == kind_of(here) and len(there) == len(here)


def same_json(there: Json, here: Json) -> bool:
    """Equal as JSON: unlike in Python, 1 is neither true nor 1.0."""
    if isinstance(there, list) and isinstance(here, list):
        return len(there) == len(here) and all(map(same_json, there, here))
    if isinstance(there, dict) and isinstance(here, dict):
        return there.keys() == here.keys() and all(same_json(there[name], here[name]) for name in there)
    return type(there) is type(here) and bool(there == here)


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
    strides = difference.aspect is Aspect.ACCESS and difference.block == MAIN_BLOCK
    if strides and any(isinstance(value, str) for value in (difference.there, difference.here)):
        return False
    return difference.aspect in _MINOR
