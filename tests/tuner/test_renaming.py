"""Traces carried between modules that differ in names only."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
import tvm_ffi
from tvm import te, topi

from bcd_registry.errors import CorruptBlob
from bcd_tuner.renaming import block_names, canonical_sketches, carry, names_in
from bcd_tuner.replay import trace_as_json
from bcd_tuner.space import apply_decisions, read_decisions, read_space
from bcd_tuner.tasks import canonicalise
from tests.tuner import tuning_programs as programs


def convolution() -> Any:
    """Named by its operators; a schedule of it adds blocks and asks for them by name."""
    x, w = te.placeholder((1, 4, 12, 12), "float32", "picture"), te.placeholder((8, 4, 3, 3), "float32", "weight")
    return tvm.IRModule({"main": te.create_prim_func([x, w, topi.nn.relu(topi.nn.conv2d_nchw(x, w, 1, 1, 1))])})


def softmax() -> Any:
    """Reductions that are factored."""
    x = te.placeholder((16, 64), "float32", "scores")
    return tvm.IRModule({"main": te.create_prim_func([x, topi.nn.softmax(x)])})


def pool() -> Any:
    """A block that asks for a rule of another target."""
    x = te.placeholder((1, 4, 12, 12), "float32", "picture")
    pooled = topi.nn.pool2d(x, (3, 3), (2, 2), (1, 1), (1, 1, 1, 1), "max", layout="NCHW")
    return tvm.IRModule({"main": te.create_prim_func([x, pooled])})


def drawn(mod: Any) -> list[Any]:
    """One schedule of each design space."""
    context, spaces = programs.context_of(mod)
    read = [read_space(space) for space in spaces]
    postprocs = list(context.space_generator.postprocs)
    found = [apply_decisions(mod, space, (None,) * len(space.sites), postprocs, 7) for space in read]
    return [schedule for schedule in found if schedule is not None]


def asked_for(schedule: Any) -> set[str]:
    """Names of blocks in a trace."""
    return {attributes[0] for kind, _, attributes, _ in trace_as_json(schedule)[0] if kind == "GetSBlock"}


@pytest.mark.parametrize("mod", [convolution(), softmax()], ids=["convolution", "softmax"])
def test_a_trace_computes_the_same_under_other_names_and_comes_back_as_it_was(mod: Any) -> None:
    twin = canonicalise(mod)
    assert names_in(mod) != names_in(twin)
    for schedule in drawn(mod):
        trace = trace_as_json(schedule)
        carried = carry(trace, mod, twin)
        assert tvm_ffi.structural_equal(schedule.mod["main"].body, carried.mod["main"].body)
        assert read_decisions(carried)[1] == read_decisions(schedule)[1]
        assert trace_as_json(carry(trace_as_json(carried), twin, mod)) == trace


def test_blocks_that_a_trace_has_added_are_found_by_their_place() -> None:
    mod = softmax()
    [schedule, *_] = [s for s in drawn(mod) if asked_for(s) - set(block_names(mod))]
    carried = carry(trace_as_json(schedule), mod, canonicalise(mod))
    assert {name for name in asked_for(carried) if not name.startswith(("block_", "buffer_"))} == {"root"}


def test_a_custom_rule_that_canonical_modules_do_not_ask_for_is_left_out() -> None:
    mod = pool()
    twin = canonicalise(mod)
    _, spaces = programs.context_of(twin)
    assert canonical_sketches(mod, programs.context_of(mod)[1]) == [read_space(space).sketch for space in spaces]
    for schedule in drawn(mod):
        carried = carry(trace_as_json(schedule), mod, twin)
        assert tvm_ffi.structural_equal(schedule.mod["main"].body, carried.mod["main"].body)
        assert read_decisions(carried)[1] == read_decisions(schedule)[1]
        assert carry(trace_as_json(carried), twin, mod)


def test_a_trace_stays_what_it_is_under_the_same_names() -> None:
    mod = convolution()
    for schedule in drawn(mod):
        assert trace_as_json(carry(trace_as_json(schedule), mod, convolution())) == trace_as_json(schedule)


def test_sketches_under_canonical_names_are_those_of_the_canonical_module() -> None:
    mod = convolution()
    _, spaces = programs.context_of(mod)
    _, canonical = programs.context_of(canonicalise(mod))
    expected = [read_space(space).sketch for space in canonical]
    assert canonical_sketches(mod, spaces) == expected
    assert [read_space(space).sketch for space in spaces] != expected


@pytest.mark.parametrize("other", [programs.matmul(8, 8, 8), softmax()], ids=["fewer blocks", "more blocks"])
def test_a_trace_of_another_program_does_not_fit(other: Any) -> None:
    [schedule, *_] = drawn(convolution())
    with pytest.raises(CorruptBlob, match="does not fit"):
        carry(trace_as_json(schedule), convolution(), other)


def test_a_trace_that_asks_for_a_block_that_is_not_there() -> None:
    trace = [[["GetSBlock", [], ["nowhere", "main"], ["b0"]]], []]
    with pytest.raises(CorruptBlob, match="nowhere"):
        carry(trace, convolution(), canonicalise(convolution()))
