from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import tvm_ffi

from bcd_registry.errors import CorruptBlob
from bcd_tuner.replay import replay, trace_as_json
from bcd_tuner.search import TaskSearch
from tests.tuner import tuning_programs as programs

PROGRAMS = {
    "matmul": programs.matmul(16, 16, 16),
    "relu": programs.relu(8, 16),
    "softmax": programs.softmax(16, 16),
    "convolution": programs.convolution(8, 8, activated=True),
}


def schedules_of(mod: Any, n: int = 4) -> list[Any]:
    context, spaces = programs.context_of(mod)
    search = TaskSearch(mod, spaces, context.space_generator.postprocs, rng=np.random.default_rng(0))
    return [c.schedule for c in search.next_round(n, lambda candidates: None)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_trace_replays_to_the_same_program(name: str) -> None:
    mod = PROGRAMS[name]
    for schedule in schedules_of(mod):
        trace = json.loads(json.dumps(trace_as_json(schedule), allow_nan=False))
        assert tvm_ffi.structural_equal(replay(mod, trace).mod, schedule.mod)


def test_a_replayed_schedule_gives_the_same_trace() -> None:
    mod = PROGRAMS["matmul"]
    [schedule] = schedules_of(mod, 1)
    trace = trace_as_json(schedule)
    assert trace_as_json(replay(mod, trace)) == trace


def test_replaying_leaves_the_module_as_it_is() -> None:
    mod = programs.matmul(16, 16, 16)
    [schedule] = schedules_of(mod, 1)
    replay(mod, trace_as_json(schedule))
    assert tvm_ffi.structural_equal(mod, PROGRAMS["matmul"])


@pytest.mark.parametrize("other", ["relu", "softmax", "convolution"])
def test_a_trace_of_another_program_does_not_replay(other: str) -> None:
    [schedule] = schedules_of(PROGRAMS["matmul"], 1)
    trace = trace_as_json(schedule)
    with pytest.raises(CorruptBlob, match="does not replay"):
        replay(PROGRAMS[other], trace)


@pytest.mark.parametrize(
    "trace",
    [
        pytest.param(None, id="none"),
        pytest.param([], id="empty"),
        pytest.param({}, id="object"),
        pytest.param("text", id="text"),
        pytest.param(7, id="number"),
        pytest.param([1, 2], id="numbers"),
        pytest.param([[["NoSuchInstruction", [], [], []]], []], id="instruction"),
        pytest.param([[["GetSBlock", [], ["nowhere", "main"], ["b0"]]], []], id="block"),
        pytest.param([[["GetLoops", ["b7"], [], ["l0"]]], []], id="variable"),
        pytest.param([[["GetSBlock", [], ["block_0"], ["b0"]]], []], id="attributes"),
        pytest.param([[["GetSBlock"]], []], id="short"),
        pytest.param([[None], [None]], id="nulls"),
    ],
)
def test_what_is_no_trace_is_a_corrupt_blob(trace: Any) -> None:
    with pytest.raises(CorruptBlob, match="does not replay"):
        replay(PROGRAMS["matmul"], trace)
