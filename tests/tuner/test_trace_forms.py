"""Traces that TVM would follow into a crash are refused before it sees them; those of real schedules pass as they are."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm.tirx import IndexMap

from bcd_registry.errors import CorruptBlob
from bcd_tuner.index_maps import current_index_map
from bcd_tuner.replay import replay, trace_as_json
from bcd_tuner.search import TaskSearch
from bcd_tuner.trace_forms import MAX_INSTRUCTIONS, checked_trace
from tests.tuner import tuning_programs as programs
from tests.tuner.small_networks import conv_network, embedding_network, matmul_network, module, softmax_network

NETWORKS: dict[str, Callable[[], Any]] = {
    "convolution": conv_network,
    "depthwise": functools.partial(conv_network, groups=8, filters=8),
    "integers": functools.partial(conv_network, dtype="int8", epilogue="none"),
    "matmul": functools.partial(matmul_network, 16, 32, 64),
    "softmax": softmax_network,
    "embedding": embedding_network,
}


@functools.cache
def scheduled(name: str) -> tuple[Any, list[Any]]:
    """A task of the network and schedules of it."""
    mod = module(NETWORKS[name]())
    context, spaces = programs.context_of(mod)
    search = TaskSearch(mod, spaces, context.space_generator.postprocs, rng=np.random.default_rng(0))
    return mod, [candidate.schedule for candidate in search.next_round(4, lambda candidates: None)]


@pytest.mark.parametrize("name", NETWORKS)
def test_traces_of_real_schedules_pass(name: str) -> None:
    mod, schedules = scheduled(name)
    assert schedules
    for schedule in schedules:
        trace = trace_as_json(schedule)
        checked = checked_trace(trace)
        assert [i for i in checked[0] if i[0] != "TransformLayout"] == [i for i in trace[0] if i[0] != "TransformLayout"]
        assert checked[1] == trace[1]
        assert tvm_ffi.structural_equal(replay(mod, trace).mod, schedule.mod)


def matmul_trace() -> Any:
    mod = programs.matmul(16, 16, 16)
    context, spaces = programs.context_of(mod)
    search = TaskSearch(mod, spaces, context.space_generator.postprocs, rng=np.random.default_rng(0))
    [candidate] = search.next_round(1, lambda candidates: None)
    return trace_as_json(candidate.schedule)


def place_of(trace: Any, kind: str) -> int:
    return next(i for i, instruction in enumerate(trace[0]) if instruction[0] == kind)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "null for a name": lambda t: t[0][0].__setitem__(2, [None, "main"]),
    "null for an annotation": lambda t: t[0][place_of(t, "Annotate")].__setitem__(2, [None]),
    "null for a block": lambda t: t[0][place_of(t, "GetLoops")].__setitem__(1, [None]),
    "a loop for a block": lambda t: t[0][-1].__setitem__(1, ["l0"]),
    "a number for a loop": lambda t: t[0][place_of(t, "SamplePerfectTile")].__setitem__(1, [5e-324]),
    "a decision for no instruction": lambda t: t[1][0].__setitem__(0, 2**31 + 4),
    "a negative place": lambda t: t[1][0].__setitem__(0, -1),
    "a decision of another instruction": lambda t: t[1][0].__setitem__(0, 0),
    "factors that are none": lambda t: t[1][0].__setitem__(1, [0, 0, 0, 0]),
    "a billion tiles": lambda t: t[0][place_of(t, "SamplePerfectTile")].__setitem__(2, [10**9, 64]),
    "more outputs than tiles": lambda t: t[0][place_of(t, "SamplePerfectTile")][3].append("v99"),
    "a choice of nothing": lambda t: t[0][place_of(t, "SampleCategorical")].__setitem__(2, [[], []]),
    "an unknown instruction": lambda t: t[0].append(["UnsafeHideBufferAccess", ["b0", "read", [0]], [], []]),
    "code of its own": lambda t: t[0].append(["Annotate", ["b0", '"int main() { }"'], ["pragma_import_c"], []]),
    "a name from the future": lambda t: t[0].insert(0, ["GetLoops", ["b0"], [], []]),
    "too many instructions": lambda t: t[0].extend([["EnterPostproc", [], [], []]] * MAX_INSTRUCTIONS),
    "a short instruction": lambda t: t[0].append(["EnterPostproc", []]),
    "an instruction in a list": lambda t: t[0].append([["EnterPostproc"], [], [], []]),
    "a number that is none": lambda t: t[0][place_of(t, "Annotate")].__setitem__(1, ["b0", float("inf")]),
    "a number of many digits": lambda t: t[0][place_of(t, "Annotate")].__setitem__(1, ["b0", 10**30]),
    "a layout by no map": lambda t: t[0].append(["TransformLayout", ["b0", "{"], [0, 0, None, 0], []]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_tvm_would_crash_on_is_refused(name: str) -> None:
    trace = matmul_trace()
    CHANGES[name](trace)
    with pytest.raises(CorruptBlob, match="does not replay") as caught:
        replay(programs.matmul(16, 16, 16), trace)
    assert "\n" not in caught.value.message


def index_map() -> Any:
    return IndexMap.from_func(
        lambda i, j: [j // 4, i, j % 4], inverse_index_map=lambda a, b, c: [b, a * 4 + c], index_dtype="int32"
    )


def graph_of(found: Any) -> Any:
    return json.loads(tvm.ir.save_json(found))


def test_an_index_map_stays_what_it_is() -> None:
    again = tvm.ir.load_json(current_index_map(json.dumps(graph_of(index_map()))))
    assert tvm_ffi.structural_equal(again, index_map())


def test_index_maps_of_an_older_release_are_read() -> None:
    """Its expressions were in another dialect, and whole numbers in their place."""
    graph = graph_of(index_map())
    numbers = {i: node["data"] for i, node in enumerate(graph["nodes"]) if node["type"] == "int"}
    older = copy.deepcopy(graph)
    for node in older["nodes"]:
        node["type"] = node["type"].replace("prim.", "tirx.")
        if node["type"] == "ir.IntImm":
            node["data"]["value"] = numbers[node["data"]["value"]]
        elif node["type"] == "int":
            node["type"], node["data"] = "None", None
    again = tvm.ir.load_json(current_index_map(json.dumps(older)))
    assert tvm_ffi.structural_equal(again, index_map())


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("prim.FloorDiv", "b", 0),
        ("prim.FloorDiv", "a", 10**9),
        ("prim.FloorDiv", "a", -1),
        ("prim.FloorDiv", "a", None),
        ("prim.Add", "a", 1),
        ("ir.IntImm", "value", 0),
        ("ir.Var", "name", 0),
        ("ir.Var", "ty", 2),
        ("ir.PrimType", "dtype", "float32x4"),
        ("tirx.IndexMap", "initial_indices", 0),
        ("tirx.IndexMap", "final_indices", 0),
        ("tirx.IndexMap", "inverse_index_map", 1),
    ],
)
def test_index_maps_that_are_none_are_refused(kind: str, field: str, value: Any) -> None:
    graph = graph_of(index_map())
    node = next(node for node in graph["nodes"] if node["type"] == kind)
    node["data"][field] = value
    with pytest.raises(CorruptBlob, match="index map"):
        current_index_map(json.dumps(graph))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "null",
        "7",
        '{"root_index":0,"nodes":[]}',
        '{"root_index":0,"nodes":[{"type":"node.File"}]}',
        "[" * 100_000,
    ],
)
def test_text_that_is_no_index_map_is_refused(text: str) -> None:
    with pytest.raises(CorruptBlob, match="index map"):
        current_index_map(text)


def test_a_division_by_nothing_is_refused() -> None:
    graph = graph_of(index_map())
    next(node for node in graph["nodes"] if node["type"] == "int")["data"] = 0
    with pytest.raises(CorruptBlob, match="index map"):
        current_index_map(json.dumps(graph))
