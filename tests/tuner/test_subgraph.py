"""Keys: what moves them, what does not, and that they are the same everywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm.script import tirx

from bcd_registry.errors import NetworkError
from bcd_registry.model import Workload
from bcd_tuner.subgraph import describe, integer_bounds, workload_of
from bcd_tuner.tasks import canonicalise
from tests.tuner.small_networks import conv_network, embedding_network, matmul_network, module, softmax_network, workload

GOLDEN = {
    "conv": "eece92f15b04c843d276a2c33e2589749d0682e4673059e37568f2e08be8b8c4",
    "matmul": "95982e6ba38689a4df9045d88389418de872f828a317ef2fe1c5a0b96c4c23e2",
    "softmax": "ad1105627e4397d3c2796a4416c830b23c556c12a76849c695c158a39de264be",
}
PROGRAM = """
import sys
from tests.tuner.small_networks import conv_network, matmul_network, softmax_network, workload
for network in (conv_network(), matmul_network(), softmax_network()):
    found = workload(network)
    print(found.key, found.cluster, found.anchor)
assert "tvm.s_tir.tensor_intrin" not in sys.modules, "half a minute of import"
"""


@pytest.fixture(scope="module")
def conv() -> Workload:
    return workload(conv_network())


def test_keys_of_this_scheme_stay() -> None:
    """A key that moves orphans every record: raise KEY_SCHEME when this has to change."""
    found = {"conv": conv_network(), "matmul": matmul_network(), "softmax": softmax_network()}
    assert {name: workload(network).key for name, network in found.items()} == GOLDEN


def test_keys_are_the_same_in_other_processes(conv: Workload) -> None:
    outputs = []
    for seed in ("1", "2"):
        run = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        outputs.append(run.stdout)
    assert outputs[0] == outputs[1]
    assert outputs[0].splitlines()[0] == f"{conv.key} {conv.cluster} {conv.anchor}"


@pytest.mark.parametrize(
    ("change", "same_cluster", "same_anchor"),
    [
        pytest.param({"size": 14}, True, True, id="height and width"),
        pytest.param({"filters": 24}, True, True, id="filters"),
        pytest.param({"channels": 4}, True, True, id="channels"),
        pytest.param({"kernel": 5}, True, True, id="kernel size"),
        pytest.param({"padding": 2}, True, True, id="padding"),
        pytest.param({"padding": 0}, False, True, id="no padding"),
        pytest.param({"stride": 2}, False, False, id="stride"),
        pytest.param({"dilation": 2}, False, False, id="dilation"),
        pytest.param({"groups": 2}, False, False, id="groups"),
        pytest.param({"dtype": "float16"}, False, False, id="dtype"),
        pytest.param({"epilogue": "sigmoid"}, False, True, id="other epilogue"),
        pytest.param({"epilogue": "none"}, False, True, id="no epilogue"),
        pytest.param({"weight_is_input": True}, False, True, id="weight is an activation"),
    ],
)
def test_what_a_change_moves(conv: Workload, change: dict[str, Any], same_cluster: bool, same_anchor: bool) -> None:
    other = workload(conv_network(**change))
    assert other.key != conv.key
    assert (other.cluster == conv.cluster) == same_cluster
    assert (other.anchor == conv.anchor) == same_anchor


def test_a_constant_is_in_the_key_and_not_in_the_cluster() -> None:
    one, other = (workload(conv_network(epilogue="leaky", slope=slope)) for slope in (0.1, 0.2))
    assert one.key != other.key
    assert one.cluster == other.cluster


def test_layout_free_inputs_are_in_the_key(conv: Workload) -> None:
    mod = module(conv_network())
    main = mod["main"].without_attr("layout_free_buffers")
    other = workload_of(tvm.IRModule({"main": main}))
    assert other.key != conv.key
    assert other.cluster != conv.cluster


@settings(max_examples=12, deadline=None)
@given(
    first=st.tuples(st.integers(2, 9), st.integers(2, 9), st.integers(2, 9)),
    second=st.tuples(st.integers(2, 9), st.integers(2, 9), st.integers(2, 9)),
)
def test_equal_keys_mean_equal_extents(first: tuple[int, int, int], second: tuple[int, int, int]) -> None:
    one, other = workload(matmul_network(*first)), workload(matmul_network(*second))
    assert (one.key == other.key) == (first == second)
    assert one.cluster == other.cluster
    assert len(one.extents) == len(other.extents)
    assert one.distance(other) == pytest.approx(other.distance(one))


ADD_ONE = """
@T.prim_func(s_tir=True)
def main(first: T.Buffer((4, 6), "float32"), out: T.Buffer((4, 6), "float32")):
    middle = T.sblock_alloc_buffer((4, 6))
    for i, j in T.grid(4, 6):
        with T.sblock("scale"):
            a, b = T.axis.remap("SS", [i, j])
            middle[a, b] = first[a, b] * T.float32(2)
    for i, j in T.grid(4, 6):
        with T.sblock("shift"):
            a, b = T.axis.remap("SS", [i, j])
            out[a, b] = middle[a, b] + T.float32(1)
"""
STORE = "            out[a, b]"
RENAMED = """
@T.prim_func(s_tir=True)
def main(given: T.Buffer((4, 6), "float32"), result: T.Buffer((4, 6), "float32")):
    between = T.sblock_alloc_buffer((4, 6))
    for row, column in T.grid(4, 6):
        with T.sblock("twice"):
            r, c = T.axis.remap("SS", [row, column])
            between[r, c] = given[r, c] * T.float32(2)
    for row, column in T.grid(4, 6):
        with T.sblock("next"):
            r, c = T.axis.remap("SS", [row, column])
            result[r, c] = between[r, c] + T.float32(1)
"""


def _module(source: str) -> Any:
    return tvm.IRModule({"main": tvm.script.from_source(source, {"T": tirx})})


def test_names_are_not_in_a_key() -> None:
    one, other = _module(ADD_ONE), _module(RENAMED)
    assert describe(one).document == describe(other).document
    assert workload_of(one).key == workload_of(other).key
    assert workload_of(one).op == "scale+shift"


@pytest.mark.parametrize(
    ("old", "new", "same_cluster"),
    [
        pytest.param("T.float32(2)", "T.float32(3)", True, id="constant"),
        pytest.param("first[a, b] *", "first[a, b] +", False, id="operator"),
        pytest.param("T.float32(2)", "first[a, b]", False, id="operand"),
        pytest.param("first[a, b] *", "first[a, 5 - b] *", False, id="access"),
        pytest.param("middle[a, b] +", "first[a, b] +", False, id="buffer that is read"),
        pytest.param('remap("SS", [i, j])', 'remap("SR", [i, j])', False, id="kind of iterator"),
        pytest.param("(4, 6)", "(4, 7)", True, id="shape of a buffer"),
        pytest.param("T.grid(4, 6)", "T.grid(4, 5)", True, id="extent of a loop"),
        pytest.param('"float32"', '"int32"', False, id="dtype"),
        pytest.param("T.grid(4, 6)", "T.grid(4, T.int64(6))", False, id="dtype of an index"),
        pytest.param(STORE, "            T.where(i < 3)\n" + STORE, False, id="predicate"),
        pytest.param(
            STORE, "            with T.init():\n    " + STORE + " = T.float32(0)\n" + STORE, False, id="initial value"
        ),
        pytest.param(STORE, '            T.sblock_attr({"mark": 1})\n' + STORE, False, id="annotation"),
        pytest.param("T.grid(4, 6)", "T.grid(6, 4)", True, id="order of extents"),
        pytest.param("alloc_buffer((4, 6))", 'alloc_buffer((4, 6), scope="local")', False, id="scope"),
        pytest.param("    middle =", '    T.func_attr({"tirx.noalias": True})\n    middle =', False, id="attribute"),
    ],
)
def test_what_an_edit_of_the_program_moves(old: str, new: str, same_cluster: bool) -> None:
    assert old in ADD_ONE
    one, other = workload_of(_module(ADD_ONE)), workload_of(_module(ADD_ONE.replace(old, new)))
    assert one.key != other.key
    assert (one.cluster == other.cluster) == same_cluster


def test_canonical_twins_replay_each_others_traces() -> None:
    one, other = canonicalise(_module(ADD_ONE)), canonicalise(_module(RENAMED))
    assert one.script() == other.script()
    schedule = tvm.s_tir.Schedule(one)
    schedule.compute_inline(schedule.get_sblock("block_0"))
    schedule.parallel(schedule.get_loops(schedule.get_sblock("block_1"))[0])
    replayed = tvm.s_tir.Schedule(other)
    schedule.trace.apply_to_schedule(replayed, remove_postproc=False)
    assert replayed.mod.script() == schedule.mod.script()


def test_an_unknown_node_is_an_error() -> None:
    source = ADD_ONE.replace("T.float32(2)", "T.Shuffle([T.float32(1), T.float32(2)], [0])")
    with pytest.raises(NetworkError, match=r"no rule for .*Shuffle"):
        describe(_module(source))


def test_more_than_one_function_is_an_error() -> None:
    with pytest.raises(NetworkError, match="one TIR function"):
        describe(tvm.IRModule({"a": _module(ADD_ONE)["main"], "b": _module(RENAMED)["main"]}))


def test_operations_and_bytes() -> None:
    found = workload(matmul_network(4, 8, 16))
    assert found.flops == 2 * 4 * 8 * 16
    assert found.bytes_moved == 4 * (4 * 8 + 8 * 16 + 4 * 16)
    assert found.extents == (4, 16, 8)


def test_arithmetic_on_indices_is_not_counted(conv: Workload) -> None:
    convolution = 2 * 16 * 12 * 12 * 8 * 9
    assert conv.flops == convolution + 2 * 16 * 12 * 12
    assert workload(conv_network(stride=2, epilogue="none")).flops == convolution / 4


def test_the_description_is_canonical_json(conv: Workload) -> None:
    document = json.loads(conv.description)
    assert json.dumps(document, sort_keys=True, separators=(",", ":")) == conv.description
    assert document["layout_free"] == [1, 2]


INDIRECT = """
@T.prim_func(s_tir=True)
def main(table: T.Buffer((7, 3), "float32"), ids: T.Buffer((5,), "int64"), out: T.Buffer((5, 3), "float32")):
    narrow = T.sblock_alloc_buffer((5,), "int32")
    for i in range(5):
        with T.sblock("narrow"):
            a = T.axis.spatial(5, i)
            narrow[a] = T.Cast("int32", ids[a])
    for i, j in T.grid(5, 3):
        with T.sblock("take"):
            a, b = T.axis.remap("SS", [i, j])
            out[a, b] = table[narrow[a], b]
"""


def test_indices_have_bounds() -> None:
    assert integer_bounds(module(embedding_network(rows=50))) == {1: 50}
    assert integer_bounds(module(matmul_network())) == {}
    assert integer_bounds(_module(INDIRECT)) == {1: 7}
