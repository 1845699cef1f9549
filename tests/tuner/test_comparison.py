"""Two versions side by side: what differs, what only scatters, and what must not be compared."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bcd_registry.model import RunSummary
from bcd_tuner.comparison import Change, Comparison, compare_runs, newest_runs
from tests.tuner.reports import latency, other_tasks, run_of, tuned_report

URL = "http://user:nobodyssecret@mlflow:5000/"


def first(tuned: float = 5.0, **changes: Any) -> RunSummary:
    return run_of(tuned_report(**{"run_id": "a" * 32, "version": "v4", "latency_ms": latency(tuned), **changes}))


def second(tuned: float = 4.0, **changes: Any) -> RunSummary:
    return run_of(tuned_report(**{"run_id": "b" * 32, "latency_ms": latency(tuned), "mlflow_run_id": "f00d", **changes}))


def compared(before: list[RunSummary], now: list[RunSummary], **options: Any) -> Comparison:
    return compare_runs(("v1", "v2"), (before, now), **options)


def test_a_difference_beyond_the_runs_own_spread_counts() -> None:
    found = compared([first(5.0)], [second(4.0)])
    assert found.comparable
    assert found.latency.change is Change.LOWER
    assert found.latency.ratio == pytest.approx(0.8)
    assert found.speedup.change is Change.HIGHER
    assert compared([first(4.0)], [second(5.0)]).latency.change is Change.HIGHER


def test_a_difference_within_it_is_none() -> None:
    found = compared([first(4.1)], [second(4.0)])
    assert found.latency.change is Change.SAME
    assert found.latency.ratio == pytest.approx(4.0 / 4.1)


def test_what_seeds_differ_by_is_noise_too() -> None:
    runs = [first(tuned, run_id=f"{number:032x}", seed=number) for number, tuned in enumerate((4.9, 4.0, 5.1))]
    found = compared(runs, [second(4.3)])
    assert (found.first.tuned and found.first.tuned.median) == 4.9
    assert found.latency.change is Change.SAME
    assert compared(runs[:1], [second(4.3)]).latency.change is Change.LOWER


def test_milliseconds_of_another_machine_are_not_compared() -> None:
    found = compared([first(environment="c" * 64)], [second()], differences=["isa avx512f only then"])
    assert not found.comparable
    assert (found.latency.change, found.latency.ratio) == (Change.UNKNOWN, None)
    assert found.tuning_s.change is Change.UNKNOWN
    assert found.trials.change is Change.SAME
    assert found.speedup.change is Change.HIGHER
    assert "isa avx512f only then" in found.notes[0]
    assert {task.before_ms for task in found.costly} == {None}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"cpu_model": "another CPU"}, "other processors"), ({"latency_ms": latency(4.0, threads=8)}, "2 threads, and on 8")],
)
def test_nor_are_those_of_another_processor_or_of_more_threads(changes: dict[str, Any], reason: str) -> None:
    found = compared([first()], [second(**changes)])
    assert found.latency.change is Change.UNKNOWN
    assert reason in found.notes[0]


def test_what_was_not_measured_is_not_compared() -> None:
    nothing = latency(4.0)
    report = tuned_report(latency_ms=type(nothing)(None, None, None, None, None, threads=2))
    found = compared([first()], [run_of(report)])
    assert found.latency.change is Change.UNKNOWN
    assert found.second.speedup is None


def test_tuning_times_of_two_equal_tunes_do_not_differ() -> None:
    runs = [run_of(tuned_report(), tuning_s=seconds) for seconds in (45.0, 48.0, 90.0)]
    assert compared(runs[:1], runs[1:2]).tuning_s.change is Change.SAME
    assert compared(runs[:1], runs[2:]).tuning_s.change is Change.HIGHER


def test_tasks_are_shared_siblings_or_new() -> None:
    tasks = tuned_report().tasks
    found = compared([first()], [second(tasks=other_tasks(tasks, keep=6))])
    assert (found.tasks.shared, found.tasks.sibling, found.tasks.new, found.tasks.gone) == (6, 2, 1, 3)
    assert sum(found.tasks.shares.values()) == pytest.approx(1.0)
    kinds = {task.workload_key: task.kind for task in found.costly}
    assert set(kinds.values()) == {"shared", "sibling", "new"}


def test_the_ten_that_cost_most_come_in_order() -> None:
    found = compared([first()], [second(tasks=tuned_report().tasks * 2)])
    assert len(found.costly) == 10
    assert [task.now_ms for task in found.costly] == sorted((task.now_ms for task in found.costly), reverse=True)
    assert found.costly[0].before_ms == pytest.approx(1.6)
    assert sum(task.share for task in found.costly) < 1.0


def test_the_newest_runs_that_ended_in_one_environment() -> None:
    runs = [
        run_of(tuned_report(run_id="cut"), created_at=5.0, finished=False),
        run_of(tuned_report(run_id="old"), created_at=1.0),
        run_of(tuned_report(run_id="new"), created_at=4.0),
        run_of(tuned_report(run_id="elsewhere", environment="d" * 64), created_at=3.0),
    ]
    assert [run.id for run in newest_runs(runs, 3)] == ["new", "old"]
    assert [run.id for run in newest_runs(runs, 1)] == ["new"]
    assert newest_runs([], 1) == []


def test_a_run_of_an_older_release_has_less_to_say() -> None:
    run = second()
    for name in ("environment", "cpu_model", "refuted", "mlflow_experiment_id"):
        del run.report[name]
    for task in run.report["tasks"]:
        del task["curve"], task["decisions"]
    assert compared([first()], [run]).latency.change is Change.LOWER


def test_notes_say_what_to_keep_in_mind() -> None:
    notes = compared([first()], [second()]).notes
    assert any("two networks" in note for note in notes)
    assert any("one run of v1 and of v2" in note for note in notes)
    assert not any("two networks" in note for note in compared([second()], [second()]).notes)


def test_a_version_that_took_no_trial_says_so() -> None:
    found = compared([first(trials=0)], [second()])
    assert (found.trials.change, found.trials.ratio) == (Change.HIGHER, None)
    assert "v1 took no trial: what it uses was found by earlier runs" in found.notes


def test_the_page_of_mlflow_needs_a_server_and_both_runs() -> None:
    logged: dict[str, Any] = {"mlflow_run_id": "beef", "mlflow_experiment_id": "7"}
    pair = ([first(**logged)], [second(mlflow_experiment_id="7")])
    wanted = "http://mlflow:5000/#/compare-runs?runs=%5B%22beef%22%2C%22f00d%22%5D&experiments=%5B%227%22%5D"
    assert compared(*pair, mlflow_uri=URL).mlflow_url == wanted
    assert compared(*pair, mlflow_uri="sqlite:///mlflow.db").mlflow_url is None
    assert compared([first(mlflow_run_id=None)], pair[1], mlflow_uri=URL).mlflow_url is None


def test_it_is_plain_json() -> None:
    found = compared([first()], [second()], mlflow_uri=URL).as_json()
    text = json.dumps(found)
    assert "nobodyssecret" not in text
    assert found["schema"] == 1
    assert json.loads(text)["latency"]["change"] == "lower"
