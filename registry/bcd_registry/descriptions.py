"""Where two workloads differ, read from their canonical descriptions. Pure.

`bcd_tuner.subgraph` writes the descriptions and says what their nodes mean. Programs are compared block by block, each in a
numbering of its own, so that one block more at the end does not make all the others differ.
"""

from __future__ import annotations

import difflib
import enum
import itertools
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from .model import Json, Workload, canonical_json, digest_of

MAIN_BLOCK = "main block"
"""The block with a reduction and the most iterations, else the last one."""

_SPATIAL, _REDUCTION = 0, 2
_AXES = MappingProxyType({_SPATIAL: "spatial", _REDUCTION: "reduction"})
_NAME_A_BUFFER = frozenset({"load", "store", "region", "match", "alloc", "decl", "buffer"})
_N_BLOCK_PARTS = 9
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
        block: `main block`, or the how-manieth before or after it: `prologue 1`, `epilogue 2`; empty for the whole.
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
        subject = f"{self.where} {self.aspect}".strip()
        if self.aspect in (Aspect.BLOCK, Aspect.EPILOGUE) and (self.there is None or self.here is None):
            return f"{self.block} only {'here' if self.there is None else 'there'}: {self.here or self.there}"
        return f"{subject} {_plain(self.there)} there, {_plain(self.here)} here"


def compare_workloads(there: Workload, here: Workload) -> list[WorkloadDifference]:
    """Everything that differs, the most telling first. Empty if and only if the descriptions are equal.

    What reads which buffer is compared only where the blocks of the two are as many.
    """
    if there.description == here.description:
        return []
    label = [_whole(Aspect.OP, there.op, here.op)] if there.op != here.op else []
    found = _compare_programs(there.description, here.description)
    order = list(Aspect)
    unique = dict.fromkeys([*label, *found])
    return sorted(unique, key=lambda d: (order.index(d.aspect), d.block != MAIN_BLOCK))


def in_words(differences: Sequence[WorkloadDifference], *, brief: bool = True) -> list[str]:
    """A phrase for each kind of difference, axes of one block together.

    Args:
        brief: Only count what mostly follows from the others: shapes, accesses and loops, and the axes of other blocks.
    """
    telling = [d for d in differences if not _is_minor(d, differences)] if brief else list(differences)
    telling = telling or list(differences)
    phrases = list(dict.fromkeys(itertools.chain.from_iterable(_phrases(telling))))
    n_others = len(differences) - len(telling)
    return [*phrases, f"{n_others} more of shapes, accesses and loops"] if n_others else phrases


def likeness(one: Sequence[str], other: Sequence[str]) -> float:
    """The share of blocks that two outlines have in common, from 0 to 1."""
    if not one or not other:
        return 0.0
    return 2.0 * (Counter(one) & Counter(other)).total() / (len(one) + len(other))


def outline(workload: Workload) -> tuple[str, ...]:
    """What each block computes, without numbers, as a digest; empty for a description that cannot be read."""
    program = _read(workload.description)
    return tuple(stage.form for stage in program.stages) if program else ()


@dataclass(frozen=True, slots=True)
class _Stage:
    """One statement of a program, mostly a nest of loops around one block.

    Attributes:
        node: The statement; its variables and buffers are numbered in the order of their use in it.
        buffers: The program's numbers of its buffers, by its own.
        form: Digest of the statement without numbers.
    """

    node: Json
    buffers: tuple[int, ...]
    form: str

    @property
    def axes(self) -> list[Json]:
        """The iterators of its first block."""
        block = next(_nodes(self.node, "block"), None)
        return list(block[1]) if block else []

    @property
    def stores(self) -> frozenset[int]:
        """The program's numbers of the buffers that it writes."""
        return frozenset(self.buffers[node[1]] for node in _nodes(self.node, "store"))


@dataclass(frozen=True, slots=True)
class _Program:
    """A description that was read.

    Attributes:
        document: As it was written.
        shell: What is around the stages.
        main: Position of the main stage.
        arguments: Which argument a buffer is, from 1, by the buffer's number.
    """

    document: Mapping[str, Json]
    shell: Json
    stages: tuple[_Stage, ...]
    main: int
    arguments: Mapping[int, int]

    @property
    def free(self) -> frozenset[int]:
        """Numbers of the buffers whose layout is free: weights."""
        positions = {int(position) + 1 for position in self.document["layout_free"]}
        return frozenset(buffer for buffer, argument in self.arguments.items() if argument in positions)

    def label(self, index: int) -> str:
        """What a stage is called."""
        if index == self.main:
            return MAIN_BLOCK
        return f"prologue {index + 1}" if index < self.main else f"epilogue {index - self.main}"

    def type_of(self, buffer: int) -> Json:
        """The type of a buffer."""
        return self.document["buffers"][buffer]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where in a program the walk is, and what a difference there is called."""

    aspect: Aspect
    block: str = ""
    part: str = ""
    index: int = 0

    def difference(self, there: Json, here: Json) -> WorkloadDifference:
        """The difference of two nodes here, as short as it can be told."""
        values = [None if node is _NOT_THERE else _shown(node) for node in (there, here)]
        if values[0] == values[1]:
            values = [None if node is _NOT_THERE else canonical_json(node) for node in (there, here)]
        in_epilogue = self.aspect is Aspect.EXPRESSION and self.block.startswith("epilogue")
        aspect = Aspect.EPILOGUE if in_epilogue else self.aspect
        return WorkloadDifference(aspect, self.block, self.part, self.index, values[0], values[1])


_PARTS: Mapping[str, Mapping[int, Aspect]] = MappingProxyType(
    {
        "for": {1: Aspect.LOOP, 3: Aspect.LOOP, 4: Aspect.LOOP, 5: Aspect.LOOP, 6: Aspect.LOOP, 7: Aspect.ANNOTATION},
        "iter": {1: Aspect.AXIS, 3: Aspect.AXIS, 4: Aspect.EXTENT},
        "block": {2: Aspect.ACCESS, 3: Aspect.ACCESS, 4: Aspect.BUFFER, 5: Aspect.ANNOTATION, 6: Aspect.INITIAL, 8: Aspect.BUFFER},
        "realize": {1: Aspect.ACCESS, 2: Aspect.PREDICATE},
        "store": {1: Aspect.BUFFER, 2: Aspect.ACCESS, 3: Aspect.EXPRESSION},
        "load": {1: Aspect.BUFFER, 2: Aspect.ACCESS},
        "region": {1: Aspect.BUFFER, 2: Aspect.ACCESS},
        "cast": {1: Aspect.DTYPE},
        "call": {2: Aspect.DTYPE},
        "v": {2: Aspect.DTYPE},
    }
)
"""What the parts of a node are about, where it is something else than the node itself."""


def _compare_programs(there: str, here: str) -> list[WorkloadDifference]:
    """By blocks where both can be read so, else node by node."""
    try:
        programs = _read(there), _read(here)
        found = list(_compare_read(*programs)) if programs[0] and programs[1] else []
        return found or list(_walk(json.loads(there), json.loads(here), _Place(Aspect.STRUCTURE)))
    except (ValueError, RecursionError):  # not JSON, or nested too deep
        return [_whole(Aspect.STRUCTURE, digest_of(there)[:12], digest_of(here)[:12])]


def _compare_read(there: _Program, here: _Program) -> Iterator[WorkloadDifference]:
    pairs = list(_pairs(there, here))
    for old, new in pairs:
        if old is None or new is None:
            yield _only_one(there, old, here, new)
        else:
            yield from _compare_stages(there.stages[old], here.stages[new], here.label(new))
    yield from _compare_buffers(there, here, pairs)
    yield from _compare_frames(there, here)


def _compare_stages(there: _Stage, here: _Stage, label: str) -> list[WorkloadDifference]:
    """Loops that say what an axis says already are left out."""
    found = list(_walk(there.node, here.node, _Place(Aspect.EXPRESSION, label)))
    axes = {(d.there, d.here) for d in found if d.aspect is Aspect.EXTENT}
    return [d for d in found if d.aspect is not Aspect.LOOP or (d.there, d.here) not in axes]


def _only_one(there: _Program, old: int | None, here: _Program, new: int | None) -> WorkloadDifference:
    """A block that one program has."""
    program, index = (here, new) if new is not None else (there, old)
    assert index is not None
    label, text = program.label(index), _summary(program.stages[index])
    aspect = Aspect.EPILOGUE if label.startswith("epilogue") else Aspect.BLOCK
    return WorkloadDifference(aspect, label, "", 0, None if old is None else text, None if new is None else text)


def _compare_buffers(
    there: _Program, here: _Program, pairs: Sequence[tuple[int | None, int | None]]
) -> Iterator[WorkloadDifference]:
    """Types, free layouts and, where all blocks are paired, who writes what is read; each pair of buffers once."""
    seen: set[tuple[int, int]] = set()
    blocks = {old: new for old, new in pairs if old is not None and new is not None}
    all_paired = len(blocks) == len(pairs) and len(there.arguments) == len(here.arguments)
    for old, new in blocks.items():
        for before, after in zip(there.stages[old].buffers, here.stages[new].buffers, strict=False):
            if (before, after) in seen:
                continue
            seen.add((before, after))
            name = _buffer_name(here, after)
            yield from _compare_types(there.type_of(before), here.type_of(after), name)
            if (before in there.free) != (after in here.free):
                yield _Place(Aspect.WEIGHT, part=name).difference(*(_layout(n in p.free) for p, n in ((there, before), (here, after))))
            origins = _origin(there, before, blocks), _origin(here, after, {new: new for new in blocks.values()})
            if all_paired and origins[0] != origins[1]:
                yield WorkloadDifference(Aspect.BUFFER, here.label(new), "", 0, *origins)


def _compare_types(there: Json, here: Json, name: str) -> Iterator[WorkloadDifference]:
    """Of two buffers: element, shape as a whole, scope, and how it lies in memory."""
    aspects = (Aspect.STRUCTURE, Aspect.DTYPE, Aspect.SHAPE, Aspect.LAYOUT)
    for aspect, old, new in zip(aspects, there[:_N_USUAL_TYPE_PARTS], here[:_N_USUAL_TYPE_PARTS], strict=False):
        if not _same(old, new):
            yield _Place(aspect, part=name).difference(old, new)
    if not _same(there[_N_USUAL_TYPE_PARTS:], here[_N_USUAL_TYPE_PARTS:]):
        yield _Place(Aspect.LAYOUT, part=name).difference(there[_N_USUAL_TYPE_PARTS:], here[_N_USUAL_TYPE_PARTS:])


def _compare_frames(there: _Program, here: _Program) -> Iterator[WorkloadDifference]:
    """What is around the blocks."""
    old, new = there.document, here.document
    yield from _walk(old.get("scheme"), new.get("scheme"), _Place(Aspect.SCHEME))
    yield from _walk(old.get("attrs"), new.get("attrs"), _Place(Aspect.ATTRIBUTE))
    yield from _walk(there.shell, here.shell, _Place(Aspect.STRUCTURE))
    kinds = [[_kind(param) for param in document["params"]] for document in (old, new)]
    if kinds[0] != kinds[1]:
        yield _whole(Aspect.ARGUMENTS, *(_counted(kind) for kind in kinds))
    scalars = [[param[1][2:] for param in document["params"] if _kind(param) == "scalar"] for document in (old, new)]
    if len(scalars[0]) == len(scalars[1]):
        yield from _walk(scalars[0], scalars[1], _Place(Aspect.DTYPE, part="scalar argument"))


def _walk(there: Json, here: Json, place: _Place) -> Iterator[WorkloadDifference]:
    """Both trees in step, down to the first nodes that are not of one kind and length."""
    if isinstance(there, dict) and isinstance(here, dict):
        for name in sorted({*there, *here}):
            old, new = there.get(name, _NOT_THERE), here.get(name, _NOT_THERE)
            inner = replace(place, part=f"{place.part}.{name}".lstrip("."))
            if old is _NOT_THERE or new is _NOT_THERE:
                yield inner.difference(old, new)
            else:
                yield from _walk(old, new, inner)
    elif isinstance(there, list) and isinstance(here, list) and _kind(there) == _kind(here) and len(there) == len(here):
        yield from _walk_node(there, here, place)
    elif not _same(there, here):
        yield place.difference(there, here)


def _walk_node(there: list[Json], here: list[Json], place: _Place) -> Iterator[WorkloadDifference]:
    kind = _kind(there)
    if kind in ("i", "f") and len(there) == 3:  # noqa: PLR2004 - kind, dtype, value
        yield from _walk_number(there, here, place)
        return
    parts = _PARTS.get(kind, {})
    for position, (old, new) in enumerate(zip(there, here, strict=True)):
        inner = replace(place, aspect=parts[position]) if position in parts else place
        if kind == "block" and position == 1:
            yield from _walk_axes(old, new, inner)
        else:
            yield from _walk(old, new, inner)


def _walk_number(there: list[Json], here: list[Json], place: _Place) -> Iterator[WorkloadDifference]:
    if not _same(there[1], here[1]):
        yield replace(place, aspect=Aspect.DTYPE).difference(there[1], here[1])
    if not _same(there[2], here[2]):
        constant = place.aspect is Aspect.EXPRESSION
        inner = replace(place, aspect=Aspect.CONSTANT) if constant else place
        yield inner.difference([*there[:1], here[1], there[2]], here)


def _walk_axes(there: Json, here: Json, place: _Place) -> Iterator[WorkloadDifference]:
    if not (isinstance(there, list) and isinstance(here, list) and len(there) == len(here)):
        yield replace(place, aspect=Aspect.AXIS).difference(there, here)
        return
    for index, (old, new) in enumerate(zip(there, here, strict=True), start=1):
        kind = new[1] if isinstance(new, list) and len(new) > 1 else None
        part = _AXES.get(kind, "") if isinstance(kind, int) else ""
        yield from _walk(old, new, replace(place, aspect=Aspect.AXIS, part=part, index=index))


def _read(description: str) -> _Program | None:
    """The program of a description; None when it is of another form."""
    try:
        document = json.loads(description)
        body, shell = _unwrap(document["body"])
        scalars = {param[1][1]: -1 - i for i, param in enumerate(document["params"]) if param[0] == "scalar"}
        stages = tuple(_stage(statement, scalars) for statement in (body[1:] if _kind(body) == "seq" else [body]))
        arguments = {param[1]: i for i, param in enumerate(document["params"], start=1) if param[0] == "buffer"}
        program = _Program(document, shell, stages, _main(stages), arguments)
        assert all(_kind(program.type_of(n)) == "type" for stage in stages for n in stage.buffers)
        assert isinstance(program.free, frozenset)
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError, AssertionError):
        return None
    return program


def _unwrap(body: Json) -> tuple[Json, Json]:
    """The statements inside the root block, and the root block without them and without its buffers."""
    if _kind(body) == "realize" and _kind(body[3]) == "block" and not body[3][1] and len(body[3]) == _N_BLOCK_PARTS:
        block = body[3]
        return block[7], [*body[:3], [*block[:7]]]
    return body, None


def _stage(statement: Json, scalars: Mapping[int, int]) -> _Stage:
    numbering = _Numbering(scalars)
    node = numbering.apply(statement)
    return _Stage(node, tuple(numbering.buffers), digest_of(canonical_json(_form(node))))


class _Numbering:
    """Numbers variables and buffers in the order they are met; scalar arguments keep the numbers they are given."""

    def __init__(self, scalars: Mapping[int, int]) -> None:
        self.buffers: dict[int, int] = {}
        self._variables = dict(scalars)
        self._n_scalars = len(scalars)

    def apply(self, node: Json) -> Json:
        """The same node in the new numbers."""
        if isinstance(node, dict):
            return {name: self.apply(value) for name, value in node.items()}
        if not isinstance(node, list) or not node:
            return node
        kind = _kind(node)
        if kind == "v":
            return [kind, self._variables.setdefault(node[1], len(self._variables) - self._n_scalars), *node[2:]]
        if kind in _NAME_A_BUFFER:
            return [kind, self._buffer(node[1]), *map(self.apply, node[2:])]
        if kind == "block" and len(node) == _N_BLOCK_PARTS:
            return [*map(self.apply, node[:-1]), sorted(self._buffer(number) for number in node[-1])]
        return [self.apply(child) for child in node]

    def _buffer(self, number: int) -> int:
        return self.buffers.setdefault(number, len(self.buffers))


def _form(node: Json) -> Json:
    """The node without numbers."""
    if isinstance(node, dict):
        return {name: _form(value) for name, value in node.items()}
    if isinstance(node, list):
        return node[:2] if _kind(node) in ("i", "f") else [_form(child) for child in node]
    return None if isinstance(node, int | float) and not isinstance(node, bool) else node


def _main(stages: Sequence[_Stage]) -> int:
    """Position of the stage with a reduction and the most iterations, else of the last one."""
    reducing = [i for i, stage in enumerate(stages) if any(axis[1] == _REDUCTION for axis in stage.axes)]
    if not reducing:
        return len(stages) - 1
    return max(reducing, key=lambda i: (math.prod(_extents(stages[i])), -i))


def _pairs(there: _Program, here: _Program) -> Iterator[tuple[int | None, int | None]]:
    """Stages that stand for each other: the main ones, and before and after them those of one form, else in order."""
    old, new = ([stage.form for stage in program.stages] for program in (there, here))
    if old == new:
        yield from ((i, i) for i in range(len(new)))
        return
    yield from _aligned(old, range(there.main), new, range(here.main))
    yield there.main, here.main
    yield from _aligned(old, range(there.main + 1, len(old)), new, range(here.main + 1, len(new)))


def _aligned(
    old: Sequence[str], there: Sequence[int], new: Sequence[str], here: Sequence[int]
) -> Iterator[tuple[int | None, int | None]]:
    matcher = difflib.SequenceMatcher(None, [old[i] for i in there], [new[i] for i in here], autojunk=False)
    for _, first, last, other_first, other_last in matcher.get_opcodes():
        yield from itertools.zip_longest(there[first:last], here[other_first:other_last])


def _buffer_name(program: _Program, buffer: int) -> str:
    argument = program.arguments.get(buffer)
    if argument is not None:
        return f"argument {argument}"
    maker = next((i for i, stage in enumerate(program.stages) if buffer in stage.stores), None)
    return "a buffer" if maker is None else f"what {program.label(maker)} gives"


def _origin(program: _Program, buffer: int, blocks: Mapping[int, int]) -> str:
    """Where a buffer comes from, with the number that its block has here."""
    argument = program.arguments.get(buffer)
    if argument is not None:
        return f"argument {argument}"
    makers = [blocks[i] + 1 for i, stage in enumerate(program.stages) if buffer in stage.stores and i in blocks]
    return f"block {'+'.join(map(str, makers))}" if makers else f"buffer {buffer}"


def _layout(free: bool) -> str:
    return "a weight of free layout" if free else "not of free layout"


def _extents(stage: _Stage) -> list[int]:
    return [axis[4][2] for axis in stage.axes if axis[4][0] == "i"]


def _summary(stage: _Stage) -> str:
    """What a block stores, over which extents."""
    stored = next((_shown(node[3]) for node in _nodes(stage.node, "store")), "a statement")
    over = "x".join(map(str, _extents(stage)))
    return f"{_short(stored)} over {over}" if over else _short(stored)


def _phrases(differences: Sequence[WorkloadDifference]) -> Iterator[list[str]]:
    """Groups of differences in words, in order."""
    for aspect, same_aspect in itertools.groupby(differences, key=lambda d: d.aspect):
        if aspect is Aspect.EXTENT:
            for (block, kind), axes in itertools.groupby(same_aspect, key=lambda d: (d.block, d.part)):
                yield [_axes_in_words(block, kind, list(axes))]
        elif aspect is Aspect.DTYPE:
            yield [f"dtype {d.there} there, {d.here} here" for d in same_aspect]
        else:
            yield [d.describe() for d in same_aspect]


def _axes_in_words(block: str, kind: str, axes: Sequence[WorkloadDifference]) -> str:
    numbers = ", ".join(str(axis.index) for axis in axes)
    there, here = ("x".join(str(v) for v in values) for values in ([a.there for a in axes], [a.here for a in axes]))
    subject = f"{block} {kind} {'axis' if len(axes) == 1 else 'axes'} {numbers}".strip()
    return f"{subject}: {there} there, {here} here"


def _is_minor(difference: WorkloadDifference, among: Sequence[WorkloadDifference]) -> bool:
    if difference.aspect in _MINOR:
        return True
    of_main = any(d.aspect is Aspect.EXTENT and d.block == MAIN_BLOCK for d in among)
    return difference.aspect is Aspect.EXTENT and difference.block != MAIN_BLOCK and of_main


def _nodes(node: Json, kind: str) -> Iterator[Json]:
    if isinstance(node, list):
        if _kind(node) == kind:
            yield node
        for child in node:
            yield from _nodes(child, kind)


def _kind(node: Json) -> str:
    """What a node is; empty for a list that is no node and for everything else."""
    return node[0] if isinstance(node, list) and node and isinstance(node[0], str) else ""


def _same(there: Json, here: Json) -> bool:
    """Equal as JSON: unlike in Python, 1 is neither true nor 1.0."""
    if isinstance(there, list) and isinstance(here, list):
        return len(there) == len(here) and all(map(_same, there, here))
    if isinstance(there, dict) and isinstance(here, dict):
        return there.keys() == here.keys() and all(_same(there[name], here[name]) for name in there)
    return type(there) is type(here) and bool(there == here)


def _shown(node: Json) -> Json:
    """A node for people: plain numbers stay such, expressions become text."""
    if not isinstance(node, list) or not node:
        return node
    kind, rest = _kind(node), node[1:]
    if kind == "i" and len(node) == 3:  # noqa: PLR2004 - kind, dtype, value
        return rest[1]
    if kind == "f" and len(node) == 3:  # noqa: PLR2004
        return _decimal(rest[1])
    if kind == "shape":
        return "x".join(str(_shown(dim)) for dim in rest)
    return _expression(kind, rest)


def _expression(kind: str, rest: list[Any]) -> str:
    if kind in ("v", "buffer"):
        return f"{kind[0]}{_plain(rest[0] if rest else None)}"
    if kind == "load":
        return f"b{_plain(rest[0] if rest else None)}"
    if kind == "iter":
        return "axis " + _plain(_shown(rest[-1]) if rest else None)
    if kind == "call":
        name, rest = str(rest[0] if rest else "").rpartition(".")[2], rest[3:]
    else:
        name = kind
    inner = ", ".join(_plain(_shown(child)) for child in rest)
    return f"{name}({inner})" if name else f"[{inner}]"


def _decimal(text: Json) -> Json:
    try:
        return float.fromhex(text)
    except (TypeError, ValueError, OverflowError):
        return text


def _plain(value: Json) -> str:
    if value is None:
        return "none"
    return _short(value if isinstance(value, str) else json.dumps(value))


def _short(text: Json, length: int = 60) -> str:
    text = str(text)
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _counted(kinds: Sequence[str]) -> str:
    return " and ".join(f"{n} {kind}{'s' if n > 1 else ''}" for kind, n in Counter(kinds).items()) or "none"


def _whole(aspect: Aspect, there: Json, here: Json) -> WorkloadDifference:
    return WorkloadDifference(aspect, "", "", 0, there, here)
