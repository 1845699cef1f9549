"""Keys over random programs: twins agree, and what computes something else has another key."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import te, tirx, topi
from tvm.ir import Call, Range, StringImm, TensorLoad, TensorRegion, Var
from tvm.s_tir import MatchBufferRegion, SBlock, SBlockRealize
from tvm.tirx.buffer import BufferType

from bcd_registry.errors import NetworkError
from bcd_registry.model import Workload
from bcd_tuner.subgraph import _OPERANDS, _Walk, describe, workload_of
from bcd_tuner.tasks import canonicalise
from tests.tuner.program_changes import CHANGES, different_pair
from tests.tuner.program_interpreter import evaluate, inputs
from tests.tuner.program_writer import NAME_BEGINS, write
from tests.tuner.random_programs import Program, generate
from tests.tuner.small_networks import target

N_PAIRS = 200
PROGRAM = """
import sys
from tests.tuner.test_key_twins import keys_of, written
for seed in range(20):
    print(*keys_of(written(seed, dress=int(sys.argv[1]))))
"""


def written(seed: int, dress: int) -> Any:
    return write(generate(seed), dress)


def keys_of(mod: Any) -> tuple[str, str, str]:
    found = workload_of(mod)
    return found.key, found.cluster, found.anchor


@functools.cache
def _pair(seed: int) -> tuple[str, Program, Program]:
    return different_pair(seed)


@functools.cache
def _workload(program: Program) -> Workload:
    return workload_of(write(program, 0))


def test_twins_have_the_same_keys() -> None:
    for seed in range(N_PAIRS):
        found = [workload_of(write(_pair(seed)[1], dress)) for dress in (0, 1, 2)]
        assert len({(w.key, w.cluster, w.anchor, w.description) for w in found}) == 1, seed
        assert NAME_BEGINS not in found[0].description


def test_what_computes_something_else_has_another_key() -> None:
    for seed in range(N_PAIRS):
        kind, one, other = _pair(seed)
        assert _workload(one).key != _workload(other).key, (seed, kind)


def test_every_kind_of_change_is_among_them() -> None:
    assert {_pair(seed)[0] for seed in range(N_PAIRS)} == set(CHANGES)


def test_no_two_of_all_programs_share_a_key_without_computing_the_same() -> None:
    known: dict[str, str] = {}
    for seed in range(N_PAIRS):
        for program in _pair(seed)[1:]:
            structure = str(tvm_ffi.structural_hash(canonicalise(write(program, 3))))
            assert known.setdefault(_workload(program).key, structure) == structure, seed


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_twins_of_other_processes_have_the_same_keys(hash_seed: str) -> None:
    command = [sys.executable, "-c", PROGRAM, hash_seed]
    done = subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=True)
    assert [tuple(line.split()) for line in done.stdout.splitlines()] == [keys_of(written(seed, 0)) for seed in range(20)]


def test_a_changed_extent_or_constant_stays_in_the_cluster() -> None:
    found = [_pair(seed) for seed in range(N_PAIRS) if _pair(seed)[0] == "constant"]
    same = [_workload(one).cluster == _workload(other).cluster for _, one, other in found]
    assert all(same)
    assert len(same) > 5


@pytest.mark.parametrize("seed", [3, 14, 15, 92, 65])
def test_programs_compute_what_the_interpreter_says(seed: int) -> None:
    """What decides whether two programs differ is right about each of them."""
    program = next(p for p in map(generate, range(seed * 100, seed * 100 + 100)) if _compiles_alike(p))
    mod = write(program, 0)
    [name] = [var.name_hint for var in mod.functions]
    given = inputs(program)
    expected = evaluate(program, given)
    tensors = [tvm.runtime.tensor(array) for array in (*given, np.zeros_like(expected))]
    tvm.compile(mod, target=target())[name](*tensors)
    np.testing.assert_allclose(tensors[-1].numpy(), expected, rtol=1e-3, atol=1e-3)


def _compiles_alike(program: Program) -> bool:
    """Without what a processor need not compute as numpy does: half floats, integers that overflow, places not stored to."""
    plain = all(b.dtype in ("float32", "float64", "int64", "int32") and not b.padded for b in program.buffers)
    kept = len({program.buffers[n].dtype[0] for n in range(len(program.buffers)) if not program.buffers[n].bound}) == 1
    return plain and kept and len(program.stages) > 1 and not any(stage.predicate for stage in program.stages)


def _te_program(kind: str, names: list[str], *, later_first: bool) -> Any:
    """One of TVM's own operators under these names, its inputs made in either order."""
    shapes = {"conv2d": ((1, 4, 9, 9), (6, 4, 3, 3)), "matmul": ((5, 7), (7, 3)), "add": ((5, 7), (7,))}[kind]
    order = reversed(range(2)) if later_first else range(2)
    made = {i: te.placeholder(shapes[i], "float32", names[i]) for i in order}
    x, w = made[0], made[1]
    result = {
        "conv2d": lambda: topi.nn.relu(topi.nn.conv2d_nchw(x, w, 1, 1, 1)),
        "matmul": lambda: topi.nn.softmax(topi.matmul(x, w)),
        "add": lambda: topi.sum(topi.add(x, w), axis=1),
    }[kind]()
    return tvm.IRModule({names[2]: te.create_prim_func([x, w, result])})


@pytest.mark.parametrize("kind", ["conv2d", "matmul", "add"])
def test_operators_of_tvm_have_twins_too(kind: str) -> None:
    one = _te_program(kind, ["picture", "weight", "main"], later_first=False)
    other = _te_program(kind, ["zq1", "zq2", "zq3"], later_first=True)
    assert keys_of(one) == keys_of(other)
    assert "zq" not in workload_of(other).description


NOT_DESCRIBED = {"span", "name", "name_hint", "ret_type", "message_parts", "error_kind"}
"""Fields that are not described: where something was written, names, that a function returns nothing, words of errors."""

DESCRIBED: dict[type, str] = {
    **dict.fromkeys((tirx.IntImm, tirx.FloatImm, StringImm), "value ty"),
    **{kind: f"{' '.join(names)} ty" for kind, names in _OPERANDS.items()},
    TensorLoad: "source indices ty",
    Var: "ty",
    tirx.Cast: "value ty",
    tirx.Let: "var value body ty",
    Call: "op args attrs ty_args ty",
    TensorRegion: "source region ty",
    tirx.SeqStmt: "seq",
    tirx.For: "loop_var min extent kind body thread_binding annotations step",
    SBlockRealize: "iter_values predicate block",
    tirx.BufferStore: "buffer value indices",
    tirx.IfThenElse: "condition then_case else_case",
    tirx.Bind: "var value",
    tirx.Evaluate: "value",
    tirx.While: "condition body",
    tirx.AssertStmt: "condition",
    tirx.AllocBuffer: "buffer annotations",
    tirx.DeclBuffer: "buffer data",
    tirx.AttrStmt: "node attr_key value body",
}
PARTS: dict[type, str] = {
    tirx.PrimFunc: "params body attrs ty",
    SBlock: "iter_vars reads writes alloc_buffers match_buffers annotations init body",
    MatchBufferRegion: "buffer source",
    Range: "min extent",
    tirx.IterVar: "dom var iter_type thread_tag",
    BufferType: "dtype storage_scope shape strides elem_offset data_alignment offset_factor layout allocated_addr",
}
"""What the walk describes of each node. Where a release of TVM adds a field, two programs that differ in it alone would share a
key: then it has to be described, or named above."""


@pytest.mark.parametrize(
    ("kind", "fields"), [*DESCRIBED.items(), *PARTS.items()], ids=lambda value: getattr(value, "__name__", "")
)
def test_no_field_of_a_node_is_overlooked(kind: Any, fields: str) -> None:
    info, found = kind.__tvm_ffi_type_info__, set()
    while info is not None:
        found |= {field.name for field in info.fields}
        info = info.parent_type_info
    assert found - NOT_DESCRIBED == set(fields.split())


def test_every_node_that_the_walk_knows_is_among_them() -> None:
    walk = _Walk()
    assert {*walk._expressions, *walk._statements, *_OPERANDS} == set(DESCRIBED)


def _changed_buffer(**changes: Any) -> Any:
    shape = [tirx.IntImm("int32", 4)]
    options = {"layout": None, **changes}
    x, y = tirx.decl_buffer(shape, "float32", "x", **options), tirx.decl_buffer(shape, "float32", "y", layout=None)
    if "allocated_addr" in changes:
        x = x.with_allocated_addr(changes["allocated_addr"])
    i = tirx.Var("i", "int32")
    body = tirx.For(i, 0, 4, tirx.ForKind.SERIAL, tirx.BufferStore(y, tirx.BufferLoad(x, [i]), [i]))
    return tvm.IRModule({"main": tirx.PrimFunc([x, y], body)})


@pytest.mark.parametrize(
    "change",
    [{"scope": "local"}, {"strides": [tirx.IntImm("int32", 2)]}, {"data_alignment": 128}, {"offset_factor": 4}],
    ids=lambda change: next(iter(change)),
)
def test_what_a_buffer_is_like_is_in_the_key(change: dict[str, Any]) -> None:
    assert workload_of(_changed_buffer(**change)).key != workload_of(_changed_buffer()).key


def test_a_module_of_another_kind_of_function_is_refused() -> None:
    with pytest.raises(NetworkError, match="one TIR function"):
        describe(tvm.IRModule({}))
