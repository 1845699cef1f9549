"""Two descriptions differ in what is named, and in nothing else."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcd_registry.comparison import compare_workloads
from bcd_registry.descriptions import MAIN_BLOCK, likeness, outline, read_program
from bcd_registry.differences import Aspect, WorkloadDifference, in_words
from bcd_registry.model import Workload, canonical_json, digest_of

SPATIAL, REDUCTION = 0, 2
INPUT, WEIGHT, OUTPUT = range(3)


@dataclass(frozen=True)
class Block:
    """What a block does to each element: an operation with a constant, over its axes."""

    axes: tuple[tuple[int, int], ...]
    operation: str = "Add"
    constant: float = 1.0


@dataclass(frozen=True)
class Spec:
    """A chain of blocks from the first argument to the last."""

    blocks: tuple[Block, ...]
    dtype: str = "float32"
    free: bool = False
    shape: tuple[int, ...] = (8, 8)
    noalias: bool = True


def describe(spec: Spec) -> str:
    """The description of a chain as `bcd_tuner.subgraph` writes them."""
    type_ = ["type", spec.dtype, ["shape", *(["i", "int64", n] for n in spec.shape)], "global"]
    n_buffers = 2 + len(spec.blocks)
    statements = []
    variable = 0
    for index, block in enumerate(spec.blocks):
        given = INPUT if index == 0 else 2 + index
        made = OUTPUT if index == len(spec.blocks) - 1 else 3 + index
        statements.append(_statement(block, spec, variable, [given, *([WEIGHT] if index == 0 else [])], made))
        variable += 2 * len(block.axes)
    body = statements[0] if len(statements) == 1 else ["seq", *statements]
    intermediate = list(range(3, n_buffers))
    root = ["realize", [], ["i", "bool", True], ["block", [], [], [], [], {}, None, body, intermediate]]
    document = {
        "scheme": 1,
        "params": [["buffer", n] for n in (INPUT, WEIGHT, OUTPUT)],
        "buffers": [type_] * max(3, n_buffers),
        "layout_free": [1] if spec.free else [],
        "attrs": {"tirx.noalias": spec.noalias},
        "body": root,
    }
    return canonical_json(document)


def _statement(block: Block, spec: Spec, first: int, given: Sequence[int], made: int) -> Any:
    n = len(block.axes)
    inner = [["v", first + n + i] for i in range(n)]
    value: Any = ["f", spec.dtype, block.constant.hex()]
    for buffer in given:
        value = [block.operation, ["load", buffer, inner], value]
    axes = [
        ["iter", kind, ["v", first + n + i, "int64"], ["i", "int64", 0], ["i", "int64", extent]]
        for i, (kind, extent) in enumerate(block.axes)
    ]
    region = [[v, ["i", "int64", 1]] for v in inner]
    accesses = [["region", buffer, region] for buffer in given], [["region", made, region]]
    statement: Any = ["block", axes, *accesses, [], {}, None, ["store", made, inner, value], []]
    statement = ["realize", [["v", first + i] for i in range(n)], ["i", "bool", True], statement]
    for i, (_, extent) in reversed(list(enumerate(block.axes))):
        bounds = [["i", "int64", 0], ["i", "int64", extent]]
        statement = ["for", 0, ["v", first + i, "int64"], *bounds, None, None, {}, statement]
    return statement


def workload(description: str, op: str = "chain") -> Workload:
    return Workload(digest_of(description), "c", "a", (), 1.0, 1.0, op, description)


def compare(there: Spec, here: Spec) -> list[WorkloadDifference]:
    return compare_workloads(workload(describe(there)), workload(describe(here)))


extents = st.integers(1, 5)
constants = st.sampled_from([0.0, 0.5, 1.0, 2.0])


def blocks_like(kinds: Sequence[Sequence[int]]) -> st.SearchStrategy[tuple[Block, ...]]:
    """Blocks with axes of these kinds; the first one alone reduces, so it is the main block."""
    return st.tuples(
        *(
            st.builds(Block, st.tuples(*(st.tuples(st.just(kind), extents) for kind in of_block)), st.just("Add"), constants)
            for of_block in kinds
        )
    )


def specs_like(kinds: Sequence[Sequence[int]]) -> st.SearchStrategy[Spec]:
    shapes = st.tuples(extents, extents)
    return st.builds(Spec, blocks_like(kinds), st.sampled_from(["float32", "float16"]), st.booleans(), shapes, st.booleans())


shapes_of_programs = st.lists(st.lists(st.just(SPATIAL), min_size=1, max_size=3), min_size=0, max_size=3).map(
    lambda rest: [[SPATIAL, REDUCTION], *rest]
)


@given(st.data())
def test_every_number_that_differs_is_named_and_nothing_else(data: st.DataObject) -> None:
    kinds = data.draw(shapes_of_programs)
    there, here = data.draw(specs_like(kinds)), data.draw(specs_like(kinds))
    labels = [MAIN_BLOCK, *(f"epilogue {i}" for i in range(1, len(kinds)))]
    pairs = list(zip(labels, there.blocks, here.blocks, strict=True))
    axes = {
        (label, ("spatial", "", "reduction")[kind], index, old, new)
        for label, one, other in pairs
        for index, ((kind, old), (_, new)) in enumerate(zip(one.axes, other.axes, strict=True), start=1)
        if old != new
    }
    found = compare(there, here)
    of = {aspect: [d for d in found if d.aspect is aspect] for aspect in Aspect}
    assert {(d.block, d.part, d.index, d.there, d.here) for d in of[Aspect.EXTENT]} == axes
    assert {(d.block, d.there, d.here) for d in of[Aspect.CONSTANT]} == {
        (label, one.constant, other.constant) for label, one, other in pairs if one.constant != other.constant
    }
    assert {(d.there, d.here) for d in of[Aspect.DTYPE]} == {(there.dtype, here.dtype)} - {(here.dtype, here.dtype)}
    assert [d.where for d in of[Aspect.WEIGHT]] == ["argument 2"] * (there.free != here.free)
    assert bool(of[Aspect.SHAPE]) == (there.shape != here.shape)
    assert [(d.part, d.there, d.here) for d in of[Aspect.ATTRIBUTE]] == [("tirx.noalias", there.noalias, here.noalias)] * (
        there.noalias != here.noalias
    )
    named = {Aspect.EXTENT, Aspect.CONSTANT, Aspect.DTYPE, Aspect.WEIGHT, Aspect.SHAPE, Aspect.ATTRIBUTE}
    assert {d.aspect for d in found} <= named
    assert bool(found) == (describe(there) != describe(here))
    assert [(d.where, d.aspect, d.here, d.there) for d in compare(here, there)] == [
        (d.where, d.aspect, d.there, d.here) for d in found
    ]


@given(st.data())
def test_a_block_more_is_named_and_nothing_else(data: st.DataObject) -> None:
    kinds = data.draw(shapes_of_programs)
    spec = data.draw(specs_like(kinds))
    added = Block(((SPATIAL, 7),), "Max", 0.0)
    position = data.draw(st.integers(1, len(kinds)))
    longer = replace(spec, blocks=(*spec.blocks[:position], added, *spec.blocks[position:]))
    (found,) = compare(spec, longer)
    assert (found.aspect, found.block, found.there) == (Aspect.EPILOGUE, f"epilogue {position}", None)
    assert found.describe().startswith(f"epilogue {position} only here: Max(")
    assert found.describe().endswith("over 7")
    (back,) = compare(longer, spec)
    assert (back.block, back.here, back.there) == (found.block, None, found.here)


def leaves(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for name, child in children:
        yield from leaves(child, (*path, name))
    if not isinstance(node, dict | list):
        yield path


def changed(document: Any, path: tuple[Any, ...]) -> Any:
    document = copy.deepcopy(document)
    node = document
    for name in path[:-1]:
        node = node[name]
    value = node[path[-1]]
    if value is None or isinstance(value, bool):
        node[path[-1]] = not value
    else:
        node[path[-1]] = value + ("x" if isinstance(value, str) else 1)
    return document


BASE = Spec((Block(((SPATIAL, 4), (REDUCTION, 3))), Block(((SPATIAL, 4),), "Max", 0.0)))


@given(st.sampled_from(list(leaves(json.loads(describe(BASE))))))
def test_no_change_of_a_leaf_goes_unnamed(path: tuple[Any, ...]) -> None:
    document = json.loads(describe(BASE))
    one, other = (workload(canonical_json(d)) for d in (document, changed(document, path)))
    assert compare_workloads(one, other)
    assert compare_workloads(other, one)
    assert compare_workloads(other, other) == []
    assert all("\n" not in d.describe() for d in compare_workloads(one, other))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from([0.0, 1.0, "i", "f", "v", "load", "block"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["scheme", "params", "buffers", "layout_free", "attrs", "body", "x"]), inner, max_size=6
        )
    ),
    max_leaves=8,
)
texts = json_values.map(json.dumps) | st.sampled_from(["", "{", "[" * 3000 + "]" * 3000, describe(BASE), '{"body": 1}'])


@given(texts, texts)
def test_whatever_is_written_there_is_no_error(one: str, other: str) -> None:
    found = compare_workloads(workload(one), workload(other))
    assert bool(found) == (one != other)
    assert in_words(found) == [] if one == other else in_words(found)
    assert isinstance(outline(workload(one)), tuple)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"operation": "Mul"}, "main block: expression Add(b1, Add(b0, 1.0)) there, Mul(b1, Mul(b0, 1.0)) here"),
        ({"axes": ((SPATIAL, 4), (SPATIAL, 3))}, "reduction axis 2"),
        ({"axes": ((SPATIAL, 4),)}, "main block: axis spatial 4, reduction 3 there, spatial 4 here"),
    ],
)
def test_other_structure(changes: dict[str, Any], text: str) -> None:
    there = Spec((Block(((SPATIAL, 4), (REDUCTION, 3))),))
    here = replace(there, blocks=(replace(there.blocks[0], **changes),))
    assert any(text in d.describe() for d in [*compare(there, here), *compare(here, there)])


def test_which_buffer_is_read_is_a_difference() -> None:
    text = describe(Spec((Block(((SPATIAL, 4), (REDUCTION, 3))), Block(((SPATIAL, 4),)))))
    other = text.replace('["load",3,', '["load",0,').replace('["region",3,[[["v",5]', '["region",0,[[["v",5]')
    assert other != text
    found = compare_workloads(workload(text), workload(other))
    assert [(d.aspect, d.block, d.there, d.here) for d in found] == [(Aspect.BUFFER, "epilogue 1", "block 1", "argument 1")]


def test_one_is_neither_true_nor_a_float() -> None:
    document = json.loads(describe(BASE))
    for value in (True, 1.0):
        other = {**document, "scheme": value}
        (found,) = compare_workloads(workload(canonical_json(document)), workload(canonical_json(other)))
        assert (found.aspect, found.there != found.here) == (Aspect.SCHEME, True)


def test_words_are_few() -> None:
    there = Spec((Block(((SPATIAL, 4), (SPATIAL, 5), (REDUCTION, 3))), Block(((SPATIAL, 4),))))
    here = Spec((Block(((SPATIAL, 8), (SPATIAL, 6), (REDUCTION, 9))), Block(((SPATIAL, 8),))), shape=(4, 4), dtype="float16")
    found = compare(there, here)
    assert in_words(found)[:3] == [
        "dtype float32 there, float16 here",
        "main block: spatial axes 1, 2: 4x5 there, 8x6 here",
        "main block: reduction axis 3: 3 there, 9 here",
    ]
    assert in_words(found)[-1] == "5 smaller differences"
    assert "epilogue 1: spatial axis 1: 4 there, 8 here" in in_words(found, brief=False)
    only_minor = compare(there, replace(there, shape=(4, 4)))
    assert in_words(only_minor)[0] == "argument 1: shape 8x8 there, 4x4 here"


def test_likeness() -> None:
    conv, relu, tanh = Block(((SPATIAL, 4), (REDUCTION, 3))), Block(((SPATIAL, 4),), "Max"), Block(((SPATIAL, 4),), "Tanh")
    chains = ((conv, relu), (conv, tanh), (tanh,), (conv, relu, relu))
    outlines = [outline(workload(describe(Spec(blocks)))) for blocks in chains]
    assert likeness(outlines[0], outlines[0]) == 1.0
    assert likeness(outlines[0], outlines[1]) == 0.5
    assert likeness(outlines[0], outlines[3]) == 0.8
    assert likeness(outlines[0], ()) == 0.0
    bigger = Spec((Block(((SPATIAL, 9), (REDUCTION, 9))), relu))
    assert outline(workload(describe(bigger))) == outlines[0]
    program = read_program(describe(bigger))
    assert program is not None
    assert [program.label(i) for i in range(2)] == [MAIN_BLOCK, "epilogue 1"]
