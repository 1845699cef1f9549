from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tvm.s_tir import Schedule

from bcd_registry.model import RecordState, TuningRecord
from bcd_tuner.check import Checked, check_winners
from bcd_tuner.plan import UNTUNED_SKETCH, plan_tasks
from bcd_tuner.scheduling import TaskRun
from bcd_tuner.search import Candidate, TaskSearch
from bcd_tuner.workers import WarmPool
from tests.tuner import tuning_programs as programs
from tests.tuner.planned_tasks import cold, make_task, own_record

MATMUL, SLOW = programs.matmul(64, 64, 64), programs.slow_matmul(64, 20)
DEPTH = 8


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmPool]:
    lock = tmp_path_factory.mktemp("lock") / "measuring.lock"
    with WarmPool(programs.TARGET, build_timeout_s=30, run_timeout_s=3, lock_path=lock, min_repeat_ms=1) as pool:
        yield pool


def searched(latency: Callable[[int], float], *, untuned: Any = SLOW, name: str = "t") -> TaskRun:
    """A run whose search measured four candidates, as the function says; any of them is faster than the untuned program."""
    context, spaces = programs.context_of(MATMUL)
    search = TaskSearch(MATMUL, spaces, context.space_generator.postprocs, rng=np.random.default_rng(0))
    candidates = search.next_round(4, lambda candidates: None)
    search.tell(candidates, [latency(i) for i in range(len(candidates))])
    task = make_task(name)
    [planned] = plan_tasks([task], [cold(task)], {task.workload.key: DEPTH})
    return TaskRun(planned, untuned, search, trials=DEPTH, finished=True, untuned_s=1.0)


def record_of(run: TaskRun, candidate: Candidate) -> TuningRecord:
    latency = candidate.latency_s or math.inf
    return own_record(run.planned.task, sketch=candidate.sketch, decisions=candidate.decisions, run_times_s=(latency,), depth=0)


def untuned_record(run: TaskRun) -> TuningRecord:
    return own_record(run.planned.task, sketch=UNTUNED_SKETCH, decisions=(), run_times_s=(run.untuned_s or 0.0,), depth=0)


def check(pool: WarmPool, *runs: TaskRun) -> Checked:
    return check_winners(runs, pool, record_of, untuned_record, seed=0)


def sabotage(candidate: Candidate) -> None:
    candidate.schedule = Schedule(programs.doubled_matmul(64))


def test_the_best_is_checked_measured_again_and_used(pool: WarmPool) -> None:
    run = searched(lambda i: 1e-3 * (4 - i))
    checked = check(pool, run)
    [record] = checked.records
    best = run.search.best if run.search else None
    assert best is not None
    assert record.decisions == best.decisions
    assert (record.state, record.depth) == (RecordState.CHECKED, DEPTH)
    assert len(record.run_times_s) == 5
    assert record.median_s != best.latency_s
    assert record.median_s <= (record.untuned_s or 0.0) == run.untuned_s
    assert checked.schedules == {run.key: best.schedule}
    assert run.record is record
    assert run.checked
    assert checked.wrong == []


def test_a_wrong_output_is_set_apart_and_the_next_best_is_used(pool: WarmPool) -> None:
    run = searched(lambda i: 1e-3 * (1 + i))
    assert run.search is not None
    first, second, *_ = run.search.measured
    sabotage(first)
    checked = check(pool, run)
    [(wrong, reason)] = checked.wrong
    assert wrong.decisions == first.decisions
    assert "differs" in reason
    assert [r.decisions for r in checked.records] == [second.decisions]
    assert checked.schedules == {run.key: second.schedule}
    assert run.notes == [reason]


def test_after_three_wrong_ones_the_task_stays_untuned(pool: WarmPool) -> None:
    run = searched(lambda i: 1e-3 * (1 + i))
    assert run.search is not None
    for candidate in run.search.measured[:3]:
        sabotage(candidate)
    checked = check(pool, run)
    assert len(checked.wrong) == 3
    assert checked.schedules == {}
    [record] = checked.records
    assert (record.sketch, record.depth) == (UNTUNED_SKETCH, DEPTH)


@pytest.mark.parametrize("latency", [2.0, math.inf])
def test_nothing_faster_leaves_a_record_that_says_so(pool: WarmPool, latency: float) -> None:
    run = searched(lambda i: latency)
    checked = check(pool, run)
    [record] = checked.records
    assert (record.sketch, record.state, record.depth) == (UNTUNED_SKETCH, RecordState.CHECKED, DEPTH)
    assert checked.schedules == {}
    assert run.checked
    assert "untuned" in run.notes[-1]


def test_a_winner_that_is_slower_when_measured_beside_the_untuned_program_is_not_used(pool: WarmPool) -> None:
    run = searched(lambda i: 1e-3 if i == 0 else math.inf, untuned=MATMUL)
    assert run.search is not None
    [slow, *_] = run.search.measured
    slow.schedule = Schedule(programs.slow_matmul(64, 20))
    checked = check(pool, run)
    assert checked.schedules == {}
    assert checked.wrong == []
    assert [r.sketch for r in checked.records] == [UNTUNED_SKETCH]


def test_a_search_that_was_cut_says_so_with_depth_zero(pool: WarmPool) -> None:
    tuned, untuned = searched(lambda i: 1e-3 * (1 + i), name="a"), searched(lambda i: 2.0, name="b")
    tuned.finished = untuned.finished = False
    checked = check(pool, tuned, untuned)
    assert [r.depth for r in checked.records] == [0]
    assert list(checked.schedules) == [tuned.key]
    assert untuned.record is None
    assert untuned.checked


def test_tasks_without_a_round_are_left_alone(pool: WarmPool) -> None:
    run = searched(lambda i: 1e-3)
    run.trials, run.finished, run.search = 0, False, None
    assert check(pool, run) == Checked()
    assert not run.checked
