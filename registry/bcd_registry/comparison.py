"""Where two workloads differ: everything, the most telling first. Pure.

Programs are compared block by block, each in a numbering of its own, so that one block more at the end does not make all the
others differ.
"""

from __future__ import annotations

import difflib
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from .descriptions import MAIN_BLOCK, Program, Stage, kind_of, read_program
from .differences import NOT_THERE, Aspect, Place, WorkloadDifference, same_json, walk
from .model import Json, Workload, digest_of

_N_USUAL_TYPE_PARTS = 4
_N_LOOP_PARTS = 9


_Pair = tuple[int | None, int | None]
"""Positions of a stage there and of the one that stands for it here; None where there is none."""


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


def _compare_descriptions(there: str, here: str) -> list[WorkloadDifference]:
    """By blocks where both can be read so, else node by node."""
    try:
        old, new = read_program(there), read_program(here)
        found = list(_compare_programs(old, new)) if old and new else []
        found = found or list(walk(json.loads(there), json.loads(here), Place(Aspect.STRUCTURE)))
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
    """Loops that say what an axis says already are left out, and accesses over other axes altogether."""
    (loops, old), (other_loops, new) = _peeled(there.node), _peeled(here.node)
    found = list(walk(old, new, Place(Aspect.EXPRESSION, label)))
    if len(there.buffers) != len(here.buffers):  # then a buffer's number says nothing
        found = [d for d in found if d.aspect is not Aspect.BUFFER]
    if any(d.aspect is Aspect.AXIS and not d.index for d in found):
        return [d for d in found if d.aspect is not Aspect.ACCESS]
    if len(loops) == len(other_loops):
        found += walk(loops, other_loops, Place(Aspect.LOOP, label))
    else:
        found.append(WorkloadDifference(Aspect.LOOP, label, "nested", 0, len(loops), len(other_loops)))
    axes = {(d.there, d.here) for d in found if d.aspect is Aspect.EXTENT}
    return [d for d in found if d.aspect is not Aspect.LOOP or (d.there, d.here) not in axes]


def _peeled(statement: Json) -> tuple[list[Json], Json]:
    """The loops around a statement, outermost first and without their bodies, and the statement."""
    loops = []
    while kind_of(statement) == "for" and len(statement) == _N_LOOP_PARTS:
        loops.append(statement[:-1])
        statement = statement[-1]
    return loops, statement


def _only_one(label: str, there: str | None, here: str | None) -> WorkloadDifference:
    aspect = Aspect.EPILOGUE if label.startswith("epilogue") else Aspect.BLOCK
    return WorkloadDifference(aspect, label, "", 0, there, here)


def _compare_buffers(there: Program, here: Program, pairs: Sequence[_Pair]) -> Iterator[WorkloadDifference]:
    """Types, free layouts and, where all blocks are paired, where each comes from; every two buffers once."""
    both = [(old, new) for old, new in pairs if old is not None and new is not None]
    as_many = len(both) == len(pairs) and len(there.arguments) == len(here.arguments)
    seen: set[tuple[int, int]] = set()
    for old, new in both:
        for before, after in _paired(there.stages[old], here.stages[new]):
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


def _paired(there: Stage, here: Stage) -> list[tuple[int, int]]:
    """Buffers that stand for each other: all in order where they are as many, else what is written."""
    if len(there.buffers) == len(here.buffers):
        return list(zip(there.buffers, here.buffers, strict=True))
    written = [[buffer for buffer in stage.buffers if buffer in stage.stores] for stage in (there, here)]
    return list(zip(*written, strict=True)) if len(written[0]) == len(written[1]) else []


def _compare_types(there: Json, here: Json, name: str) -> Iterator[WorkloadDifference]:
    """Of two buffers: element, shape as a whole, scope, and how it lies in memory."""
    aspects = (Aspect.STRUCTURE, Aspect.DTYPE, Aspect.SHAPE, Aspect.LAYOUT)
    parts = [[*type_[:_N_USUAL_TYPE_PARTS], type_[_N_USUAL_TYPE_PARTS:]] for type_ in (there, here)]
    for aspect, old, new in itertools.zip_longest((*aspects, Aspect.LAYOUT), *parts, fillvalue=NOT_THERE):
        if not same_json(old, new):
            yield Place(aspect if isinstance(aspect, Aspect) else Aspect.LAYOUT, part=name).difference(old, new)


def _compare_frames(there: Program, here: Program) -> Iterator[WorkloadDifference]:
    """What is around the blocks."""
    old, new = there.document, here.document
    yield from walk(old.get("scheme"), new.get("scheme"), Place(Aspect.SCHEME))
    yield from walk(old.get("attrs"), new.get("attrs"), Place(Aspect.ATTRIBUTE))
    yield from walk(there.shell, here.shell, Place(Aspect.STRUCTURE))
    kinds = [[kind_of(param) for param in document["params"]] for document in (old, new)]
    if kinds[0] != kinds[1]:
        yield _whole(Aspect.ARGUMENTS, *map(_counted, kinds))
    scalars = [[param[1][2:] for param in document["params"] if kind_of(param) == "scalar"] for document in (old, new)]
    if len(scalars[0]) == len(scalars[1]):
        yield from walk(scalars[0], scalars[1], Place(Aspect.DTYPE, part="scalar argument"))


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
    first = _n_common(old, there, new, here)
    last = _n_common(old, there[first:][::-1], new, here[first:][::-1])
    yield from zip(there[:first], here[:first], strict=True)
    yield from _matched(old, there[first : len(there) - last], new, here[first : len(here) - last])
    yield from zip(there[len(there) - last :], here[len(here) - last :], strict=True)


def _n_common(old: Sequence[str], there: Sequence[int], new: Sequence[str], here: Sequence[int]) -> int:
    same = (old[i] == new[j] for i, j in zip(there, here, strict=False))
    return sum(1 for _ in itertools.takewhile(bool, same))


def _matched(old: Sequence[str], there: Sequence[int], new: Sequence[str], here: Sequence[int]) -> Iterator[_Pair]:
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


def _whole(aspect: Aspect, there: Json, here: Json) -> WorkloadDifference:
    return WorkloadDifference(aspect, "", "", 0, there, here)
