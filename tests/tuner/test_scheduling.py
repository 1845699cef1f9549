from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bcd_registry.model import Grade, Match, RecordState, Task
from bcd_tuner.plan import plan_tasks
from bcd_tuner.scheduling import Schedule, TaskRun
from tests.tuner.planned_tasks import cold, exact, known, make_task, own_record

DEPTH = 32


def runs_of(tasks: Sequence[Task], matches: Sequence[Match], depth: int = DEPTH) -> list[TaskRun]:
    planned = plan_tasks(tasks, matches, {t.workload.key: depth for t in tasks})
    return [TaskRun(p, None) for p in planned]


def one_round(run: TaskRun, n: int, saved: float = 0.5) -> None:
    """What a round does to a run, without a search: some latency is saved, and some trials are used."""
    before = run.best_s
    after = (before or run.untuned_s or 1e-3) * (1 - saved)
    run.search = SimpleNamespace(best=SimpleNamespace(latency_s=after), misled=())  # type: ignore[assignment]
    run.trials += n
    run.after_round(n, before or run.untuned_s)


def play(runs: list[TaskRun], n: int = 16, saved: float = 0.5) -> list[str]:
    """The order of the rounds until nothing is left."""
    schedule, order = Schedule(runs), []
    while (run := schedule.next_task()) is not None:
        order.append(run.planned.task.name)
        one_round(run, min(n, run.left), saved)
        assert len(order) < 1000
    assert schedule.trials_left == 0
    return order


def members(n: int) -> list[Task]:
    return [make_task(f"m{i}", cluster="c", extents=(16 * 2**i, 16, 16), flops=1e7) for i in range(n)]


def test_siblings_wait_until_their_representative_is_finished() -> None:
    tasks = [*members(3), make_task("other", flops=1e8)]
    order = play(runs_of(tasks, [cold(t) for t in tasks]))
    assert max(i for i, name in enumerate(order) if name == "m1") < min(
        i for i, name in enumerate(order) if name in ("m0", "m2")
    )
    assert set(order) == {t.name for t in tasks}


def test_what_is_known_gets_no_round() -> None:
    tasks = members(2)
    assert play(runs_of(tasks, [exact(t) for t in tasks])) == []


def test_the_costliest_task_comes_first() -> None:
    tasks = [make_task(name, flops=flops) for name, flops in (("small", 1e6), ("large", 1e9), ("middle", 1e8))]
    assert play(runs_of(tasks, [cold(t) for t in tasks]), n=DEPTH) == ["large", "middle", "small"]


def test_how_often_the_network_calls_it_counts() -> None:
    tasks = [make_task("once", flops=1e8), make_task("often", flops=3e7, weight=10)]
    assert play(runs_of(tasks, [cold(t) for t in tasks]), n=DEPTH) == ["often", "once"]


def test_priors_are_confirmed_before_anything_is_refined() -> None:
    tasks = [make_task("large", flops=1e9), make_task("new", flops=1e9), make_task("tiny", flops=1e4)]
    runs = runs_of(tasks, [known(tasks[0], Grade.CLUSTER), cold(tasks[1]), known(tasks[2], Grade.CLUSTER)])
    schedule, order = Schedule(runs), []
    for _ in range(3):
        chosen = schedule.next_task()
        assert chosen is not None
        order.append(chosen.planned.task.name)
        one_round(chosen, chosen.next_round)
    assert order == ["large", "tiny", "new"]


def test_a_representative_counts_its_siblings_savings() -> None:
    tasks = [*[make_task(f"m{i}", cluster="c", flops=1e8) for i in range(8)], make_task("alone", flops=2e8)]
    assert play(runs_of(tasks, [cold(t) for t in tasks]), n=DEPTH)[0].startswith("m")


def test_a_task_that_saves_nothing_makes_way() -> None:
    tasks = [make_task("hopeless", flops=1e9), make_task("hopeful", flops=3e8)]
    runs = runs_of(tasks, [cold(t) for t in tasks])
    for run, untuned_s in zip(runs, (0.33, 0.1), strict=True):
        run.untuned_s = untuned_s
    schedule = Schedule(runs)
    order = []
    for _ in range(4):
        chosen = schedule.next_task()
        assert chosen is not None
        order.append(chosen.planned.task.name)
        one_round(chosen, 8, saved=0.0 if order[-1] == "hopeless" else 0.4)
    assert order[0] == "hopeless"
    assert order.count("hopeful") >= 2


def test_a_representative_without_a_design_space_holds_nobody_up() -> None:
    tasks = members(3)
    runs = runs_of(tasks, [cold(t) for t in tasks])
    schedule = Schedule(runs)
    leader = schedule.next_task()
    assert leader is runs[1]
    leader.finished = True
    assert schedule.next_task() in (runs[0], runs[2])


GRADES = st.lists(st.sampled_from(list(Grade)), min_size=1, max_size=8)


@settings(deadline=None)
@given(grades=GRADES, n=st.integers(1, 20), saved=st.floats(0.0, 1.0, exclude_max=True), depth=st.integers(0, 40))
def test_it_always_ends_with_what_was_granted_or_flat_curves(grades: list[Grade], n: int, saved: float, depth: int) -> None:
    tasks = [make_task(f"t{i}", cluster=str(i % 3), extents=(16, 16, 16 * (i + 1)), flops=10.0**i) for i in range(len(grades))]
    alone = {Grade.EXACT: exact, Grade.COLD: cold}
    matches = [alone[g](t) if g in alone else known(t, g) for t, g in zip(tasks, grades, strict=True)]
    runs = runs_of(tasks, matches, depth)
    play(runs, n, saved)
    assert all(run.finished for run in runs)
    for run in runs:
        granted = run.planned.depth if any("slow for its size" in note for note in run.notes) else run.planned.trials
        assert run.trials == granted or "would not be seen" in run.notes[-1]


def test_a_task_whose_rounds_no_longer_count_is_stopped() -> None:
    tasks = [make_task("large", flops=1e9), make_task("tiny", flops=1e4)]
    runs = runs_of(tasks, [cold(t) for t in tasks], depth=64)
    for run, untuned_s in zip(runs, (0.3, 5e-6), strict=True):
        run.untuned_s = untuned_s
    order = play(runs, n=8, saved=0.0)
    assert order.count("tiny") == 1
    assert runs[1].notes == ["stopped after 8 of 64 trials: more would not be seen in the network"]
    assert runs[1].finished


def test_a_small_task_whose_prior_is_confirmed_needs_no_more() -> None:
    tasks = [make_task("large", flops=1e9), make_task("tiny", flops=1e4)]
    runs = runs_of(tasks, [known(t, Grade.CLUSTER) for t in tasks])
    schedule = Schedule(runs)
    for run, untuned_s in zip(runs, (0.3, 5e-6), strict=True):
        run.untuned_s = untuned_s
        one_round(run, run.next_round)
    assert schedule.next_task() is runs[0]
    assert (runs[1].trials, runs[1].finished) == (2, True)


def test_a_task_that_is_slow_for_its_size_gets_the_trials_of_a_search_from_nothing() -> None:
    tasks = [make_task(f"t{i}", op="conv2d+add", flops=1e9) for i in range(4)] + [make_task("other", op="mean", flops=1e9)]
    matches = [*(exact(t) for t in tasks[:3]), known(tasks[3], Grade.CLUSTER), known(tasks[4], Grade.CLUSTER)]
    runs = runs_of(tasks, matches)
    for run in runs[:3]:
        run.record = own_record(run.planned.task, run_times_s=(1e-3,), state=RecordState.PUBLISHED)
    for run in runs[3:]:
        run.untuned_s = 10e-3
    play(runs, n=16, saved=0.5)
    assert [run.trials for run in runs] == [0, 0, 0, 32, 16]
    assert runs[3].notes == ["slow for its size: 16 trials more than planned"]


def test_a_task_that_gets_more_trials_is_not_settled_any_more() -> None:
    tasks = [make_task(f"t{i}", op="conv2d+add", flops=1e9) for i in range(4)]
    runs = runs_of(tasks, [*(exact(t) for t in tasks[:3]), known(tasks[3], Grade.CLUSTER)])
    for run in runs[:3]:
        run.record = own_record(run.planned.task, run_times_s=(1e-3,), state=RecordState.PUBLISHED)
    slow = runs[3]
    schedule = Schedule(runs)
    slow.untuned_s = 10e-3
    one_round(slow, slow.left)
    assert slow.finished
    slow.settled = True
    assert schedule.next_task() is slow
    assert (slow.finished, slow.settled) == (False, False)


def test_a_task_whose_priors_misled_gets_a_search_from_nothing_and_a_fifth_more() -> None:
    task = make_task("t")
    run, *_ = runs_of([task], [known(task, Grade.CLUSTER)], depth=40)
    assert run.granted == 20
    run.search = SimpleNamespace(best=SimpleNamespace(latency_s=1e-3), misled=("prior",))  # type: ignore[assignment]
    run.trials = 8
    run.after_round(8, 1e-3)
    assert run.granted == 48
    assert run.left == 40


def test_the_time_that_is_left_goes_by_each_task_s_own_pace() -> None:
    tasks = [make_task("slow", flops=1e8), make_task("fast", flops=1e8), make_task("unknown", flops=1e8)]
    runs = runs_of(tasks, [cold(t) for t in tasks], depth=16)
    schedule = Schedule(runs)
    assert schedule.seconds_left is None
    for run, seconds in zip(runs, (8.0, 2.0), strict=False):
        one_round(run, 8)
        run.seconds = seconds
    assert schedule.seconds_left == pytest.approx(8.0 + 2.0 + 16 * 10.0 / 16)


def test_the_best_latency_is_of_this_run_or_published_or_untuned() -> None:
    task = make_task("t")
    run, *_ = runs_of([task], [cold(task)])
    found = [run.best_s]
    run.untuned_s = 3e-3
    found.append(run.best_s)
    for state, latency in ((RecordState.MEASURED, 1e-3), (RecordState.PUBLISHED, 2e-3)):
        run.record = own_record(task, run_times_s=(latency,), state=state)
        found.append(run.best_s)
    one_round(run, 4, saved=0.5)
    assert [*found, run.best_s] == [None, 3e-3, 3e-3, 2e-3, 1e-3]


@pytest.mark.parametrize("latency", [None, 5e-3])
def test_a_round_of_failures_promises_little_and_breaks_nothing(latency: float | None) -> None:
    task = make_task("t")
    run, *_ = runs_of([task], [cold(task)])
    Schedule([run])
    promised = run.promise
    run.untuned_s = latency
    run.search = SimpleNamespace(best=None, misled=())  # type: ignore[assignment]
    run.trials = 16
    run.after_round(16, latency)
    assert 0 < run.promise < promised
    assert not run.finished
    assert run.left == 16
