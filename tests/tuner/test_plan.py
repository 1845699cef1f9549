from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bcd_registry.model import Grade, Match, PriorSource, RecordState, Task
from bcd_registry.testing.values import make_run
from bcd_tuner.plan import UNTUNED_SKETCH, PlannedTask, depths_of, expectation, plan_tasks, seconds_a_trial
from bcd_tuner.prepare import as_cold, saved_trials
from tests.tuner.planned_tasks import ENVIRONMENT, cold, exact, known, make_task, own_record

NETWORK = [make_task(f"heavy {i}", flops=1e9) for i in range(3)] + [make_task(f"light {i}", flops=1e4) for i in range(6)]


def planned(task: Task, match: Match, depth: int = 32) -> PlannedTask:
    [found] = plan_tasks([task], [match], {task.workload.key: depth})
    return found


def test_heavy_tasks_are_searched_deeper() -> None:
    depths = depths_of(NETWORK, 64)
    assert [depths[t.workload.key] for t in NETWORK] == [64] * 3 + [16] * 6


@pytest.mark.parametrize(("trials", "light"), [(0, 0), (1, 1), (3, 3), (4, 4), (5, 4), (16, 4), (17, 5), (32, 8)])
def test_light_tasks_get_a_quarter_and_at_least_four_when_there_are(trials: int, light: int) -> None:
    depths = depths_of(NETWORK, trials)
    assert set(depths.values()) == {trials, light}


@pytest.mark.parametrize(
    ("flops", "expected"),
    [
        ((1e9, 1e9), (8, 8)),
        ((3e9, 1e9), (16, 8)),
        ((1e10, *(1e9,) * 5), (32, *(8,) * 4, 4)),
        ((1e12, *(4e10,) * 20), (32, *(8,) * 16, *(4,) * 4)),
    ],
)
def test_the_costliest_are_searched_two_or_four_times_deeper(flops: tuple[float, ...], expected: tuple[int, ...]) -> None:
    tasks = [make_task(f"t{i}", flops=f) for i, f in enumerate(flops)]
    depths = depths_of(tasks, 8)
    assert sorted((depths[t.workload.key] for t in tasks), reverse=True) == list(expected)


def test_depths_are_the_same_in_any_order_and_on_every_run() -> None:
    assert depths_of(NETWORK, 32) == depths_of(NETWORK[::-1], 32) == depths_of(list(NETWORK), 32)


def test_a_depth_asked_for_once_is_deep_enough_for_the_same_question_again() -> None:
    """What a published record says it was searched to is what the same network asks of it."""
    for trials in (1, 4, 7, 32, 100):
        assert depths_of(NETWORK, trials) == depths_of(NETWORK, trials)
        deeper, asked = depths_of(NETWORK, trials + 1), depths_of(NETWORK, trials)
        assert all(deeper[key] >= asked[key] for key in asked)


@pytest.mark.parametrize(
    ("grade", "trials", "source"),
    [
        (Grade.STALE, 8, PriorSource.REGISTRY),
        (Grade.CLUSTER, 16, PriorSource.REGISTRY),
        (Grade.ANCHOR, 24, PriorSource.REGISTRY),
    ],
)
def test_trials_are_granted_by_grade(grade: Grade, trials: int, source: PriorSource) -> None:
    task = make_task("t")
    own = own_record(task, state=RecordState.PUBLISHED)
    found = planned(task, known(task, grade, own))
    assert (found.trials, found.prior, found.waits_for) == (trials, source, None)


def test_what_is_known_costs_nothing_and_what_is_not_costs_all() -> None:
    task = make_task("t")
    assert (planned(task, exact(task)).trials, planned(task, exact(task)).prior) == (0, PriorSource.REGISTRY)
    assert (planned(task, cold(task)).trials, planned(task, cold(task)).prior) == (32, PriorSource.NONE)


@settings(deadline=None)
@given(
    depth=st.integers(0, 200), grade=st.sampled_from(list(Grade)), spent=st.integers(0, 300), state=st.sampled_from(RecordState)
)
def test_nobody_gets_more_than_the_depth_and_whoever_is_searched_gets_something(
    depth: int, grade: Grade, spent: int, state: RecordState
) -> None:
    task = make_task("t")
    matches = {Grade.EXACT: exact(task), Grade.COLD: cold(task)}
    match = matches.get(grade) or known(task, grade, own_record(task, depth=0, trials=spent, state=state))
    found = planned(task, match, depth)
    assert 0 <= found.trials <= depth
    assert (found.trials > 0) == (depth > 0 and grade is not Grade.EXACT)


def test_a_search_that_came_to_its_end_and_is_doubted_gets_few_trials_and_not_what_is_left() -> None:
    task = make_task("t")
    doubted = own_record(task, state=RecordState.PUBLISHED, depth=32, trials=32, drift="slower")
    on_the_way = own_record(task, depth=0, trials=31, run_id="r2")
    match = known(task, Grade.STALE, doubted)
    match = dataclasses.replace(match, priors=(*match.priors, *known(task, Grade.STALE, on_the_way).priors))
    assert planned(task, match).trials == 8
    assert planned(task, match, depth=64).trials == 64 - 31


@pytest.mark.parametrize(("spent", "trials"), [(1, 31), (8, 24), (16, 16), (30, 2), (32, 1), (100, 1)])
def test_an_unfinished_search_gets_what_is_left_and_at_least_one_trial(spent: int, trials: int) -> None:
    task = make_task("t")
    records = [own_record(task, depth=0, trials=n, run_id=str(n)) for n in (1, spent)]
    found = planned(task, known(task, Grade.STALE, *records))
    assert (found.trials, found.spent) == (trials, spent)


def test_what_was_spent_in_another_environment_was_not_spent_here() -> None:
    task = make_task("t")
    match = known(task, Grade.STALE, own_record(task, depth=0, trials=30))
    [here] = plan_tasks([task], [match], {task.workload.key: 32}, environment_key=ENVIRONMENT)
    [elsewhere] = plan_tasks([task], [match], {task.workload.key: 32}, environment_key="another")
    assert (here.trials, here.spent) == (2, 30)
    assert (elsewhere.trials, elsewhere.spent) == (8, 0)


def test_what_another_run_finished_and_nobody_published_is_taken_over_without_a_trial() -> None:
    task = make_task("t")
    slow, fast = (own_record(task, depth=32, run_times_s=(t,), run_id=str(t)) for t in (2e-3, 1e-3))
    match = known(task, Grade.STALE, slow, fast)
    [found] = plan_tasks([task], [match], {task.workload.key: 32}, environment_key=ENVIRONMENT)
    assert (found.trials, found.finished) == (0, fast)
    [elsewhere] = plan_tasks([task], [match], {task.workload.key: 32}, environment_key="another")
    [deeper] = plan_tasks([task], [match], {task.workload.key: 33}, environment_key=ENVIRONMENT)
    assert elsewhere.finished is deeper.finished is None
    assert min(elsewhere.trials, deeper.trials) > 0


def test_a_finished_search_of_less_depth_is_a_prior_only() -> None:
    task = make_task("t")
    record = own_record(task, depth=16, trials=16, state=RecordState.PUBLISHED)
    found = planned(task, known(task, Grade.STALE, record))
    assert (found.trials, found.spent) == (8, 0)


def test_another_workloads_unfinished_search_is_not_ones_own() -> None:
    task, sibling = make_task("t", cluster="c"), make_task("s", cluster="c", extents=(16, 32, 128))
    record = own_record(sibling, depth=0, trials=30)
    found = planned(task, known(task, Grade.CLUSTER, record, source=sibling))
    assert (found.trials, found.spent) == (16, 0)


def test_untuned_is_nothing_to_diffuse_from() -> None:
    task = make_task("t")
    untuned = own_record(task, sketch=UNTUNED_SKETCH, decisions=(), state=RecordState.PUBLISHED, depth=8)
    tuned = own_record(task)
    found = planned(task, known(task, Grade.STALE, untuned, tuned))
    assert [p.record for p in found.priors] == [tuned]
    assert planned(task, known(task, Grade.STALE, untuned)).priors == ()


def members(n: int, **changes: Any) -> list[Task]:
    return [make_task(f"m{i}", cluster="c", extents=(16 * 2**i, 16, 16), flops=1e7, **changes) for i in range(n)]


def test_siblings_of_a_cold_representative_wait_for_it_and_get_half() -> None:
    tasks = members(3)
    found = plan_tasks(tasks, [cold(t) for t in tasks], {t.workload.key: 32 for t in tasks})
    leader = tasks[1].workload.key
    assert [p.waits_for for p in found] == [leader, None, leader]
    assert [p.trials for p in found] == [16, 32, 16]
    assert [p.prior for p in found] == [PriorSource.RUN, PriorSource.NONE, PriorSource.RUN]


def test_siblings_of_an_anchor_wait_too_and_keep_the_registrys_priors() -> None:
    tasks = members(3)
    found = plan_tasks(tasks, [known(t, Grade.ANCHOR) for t in tasks], {t.workload.key: 32 for t in tasks})
    assert [p.trials for p in found] == [16, 24, 16]
    assert {p.prior for p in found} == {PriorSource.REGISTRY}


def test_a_representative_has_trials_and_waits_for_nobody() -> None:
    tasks = [*members(5), make_task("alone")]
    matches = [exact(tasks[0]), known(tasks[1], Grade.STALE), *[cold(t) for t in tasks[2:]]]
    found = {p.task.workload.key: p for p in plan_tasks(tasks, matches, {t.workload.key: 32 for t in tasks})}
    for p in found.values():
        if p.waits_for is not None:
            leader = found[p.waits_for]
            assert leader.waits_for is None
            assert leader.trials > 0
            assert leader.task.workload.cluster == p.task.workload.cluster
    assert [p.waits_for for p in found.values()].count(None) == 4


GRADES = st.lists(st.sampled_from(list(Grade)), min_size=1, max_size=6)


def match_of(task: Task, grade: Grade) -> Match:
    alone = {Grade.EXACT: exact(task), Grade.COLD: cold(task)}.get(grade)
    return alone or known(task, grade, own_record(task, state=RecordState.PUBLISHED))


@settings(deadline=None)
@given(grades=GRADES, depth=st.integers(0, 64))
def test_knowing_more_never_costs_more_than_knowing_nothing(grades: list[Grade], depth: int) -> None:
    tasks = members(len(grades))
    matches = [match_of(task, grade) for task, grade in zip(tasks, grades, strict=True)]
    depths = {t.workload.key: depth for t in tasks}
    found = plan_tasks(tasks, matches, depths)
    nothing = as_cold(found)
    assert [p.task for p in nothing] == tasks
    assert {p.match.grade for p in nothing} == {Grade.COLD}
    saved = saved_trials(found)
    assert all(n >= 0 for n, p in zip(saved, found, strict=True) if p.match.grade is Grade.EXACT)
    if all(grade in (Grade.EXACT, Grade.STALE, Grade.CLUSTER) for grade in grades):
        assert sum(saved) >= 0


def test_nothing_known_is_nothing_saved_and_a_reused_task_saves_what_it_took() -> None:
    task = make_task("t")
    published = own_record(task, state=RecordState.PUBLISHED)
    matches = [cold(task), exact(task), exact(task, trials=3), known(task, Grade.STALE, published)]
    assert [saved_trials([planned(task, match)]) for match in matches] == [[0], [32], [3], [24]]


def test_earlier_runs_say_what_a_trial_costs() -> None:
    assert seconds_a_trial([]) == (None, "no earlier run to go by")
    few = make_run("few", trials=7, tuning_s=700.0)
    assert seconds_a_trial([few])[0] is None
    runs = [few, make_run("a", trials=10, tuning_s=10.0), make_run("b", trials=30, tuning_s=50.0, version="2")]
    cost, basis = seconds_a_trial(runs)
    assert cost == pytest.approx(1.5)
    assert basis == "1.50 s a trial over 40 trials of ocr 1, ocr 2"


def test_the_plan_adds_up() -> None:
    tasks = members(2)
    found = plan_tasks(tasks, [exact(tasks[0]), cold(tasks[1])], {t.workload.key: 32 for t in tasks})
    plan = expectation("net", "v2", "{}", found, [make_run("a", trials=10, tuning_s=20.0)])
    assert plan.trials == 32
    assert [t.seconds for t in plan.tasks] == [0.0, 64.0]
    assert [t.known_ms for t in plan.tasks] == [pytest.approx(1.0), None]
    assert [t.grade for t in plan.tasks] == [Grade.EXACT, Grade.COLD]
    assert plan.as_json()["trials"] == 32
    assert expectation("net", "v2", "{}", found, []).tasks[1].seconds is None
    assert math.isfinite(plan.seconds_a_trial or math.nan)
