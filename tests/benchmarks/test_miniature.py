"""Every mode on a tiny network, as the benchmark runs them, so that it cannot rot. No assertion is about speed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from bcd_registry.model import NetworkSpec
from bcd_tuner.light_import import import_intrinsics
from bcd_tuner.session import TuneRequest
from bcd_tuner.targets import resolve_target
from bcd_tuner.workers import WarmBuilder, WarmPool, WarmRunner

from . import stock
from .compare import Table, all_versus
from .curves import draw
from .modes import run_mode
from .networks import PAIRS
from .ours import ABLATIONS, Missing, changed_request
from .outcome import light_share
from .parts import FULL_COLD, FULL_WARM, VARIANTS, Comparison
from .report import render
from .results import Result, append_result, read_results
from .run import OutOfTime, Sitting, _run_process, begin, job_of, run_comparison, run_part
from .tiny import TRIALS, tiny_pair

pytestmark = pytest.mark.timeout(900)

COMPARISON = Comparison("tiny", 0, ("b", "c", "d", "e"), 1)


@pytest.fixture(scope="module")
def sitting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sitting]:
    folder = tmp_path_factory.mktemp("bench")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PAIRS, "tiny", tiny_pair(folder))
        yield begin(folder, folder / "results.jsonl", limit_minutes=60)


@pytest.fixture(scope="module")
def results(sitting: Sitting) -> Mapping[str, Result]:
    """(b) as the benchmark runs it, in a process of its own; ours before it in this one, since each start takes seconds."""
    job = job_of(COMPARISON, sitting.work)
    for mode in ("v1", "c", "d", "e"):
        append_result(sitting.results, run_mode(mode, job))
    assert run_part([COMPARISON], sitting)
    return {result.mode: result for result in read_results(sitting.results)}


def assert_sound(result: Result) -> None:
    seconds, trials, estimates = zip(*result.curve, strict=True)
    assert list(seconds) == sorted(seconds)
    assert list(trials) == sorted(trials)
    assert trials[-1] == result.trials
    assert min(estimates) > 0.0
    assert min(result.time_s.values()) >= 0.0
    assert result.curve[-1][0] <= result.wall_s
    assert result.checked_ms
    assert result.equal, result.notes
    assert result.n_wrong == 0
    assert result.end_to_end.keys() >= {"untuned", "tuned", "onnxruntime"}
    assert result.peak_rss_bytes > 100 << 20
    assert result.facts["cores"] >= 1


@pytest.mark.slow
def test_every_mode_measures_the_tiny_network(results: Mapping[str, Result]) -> None:
    assert list(results) == ["v1", "c", "d", "e", "b"]
    for result in results.values():
        assert_sound(result)
    assert len({result.n_tasks for result in results.values()}) == 1


@pytest.mark.slow
def test_the_baseline_gets_the_trials_that_a_search_from_nothing_may_use(results: Mapping[str, Result]) -> None:
    assert 0 < results["b"].trials <= results["b"].n_tasks * TRIALS
    assert results["c"].trials <= results["b"].trials


@pytest.mark.slow
def test_the_next_version_starts_from_the_first(results: Mapping[str, Result]) -> None:
    assert set(results["c"].counts) == {"cold"}
    assert results["d"].counts.keys() & {"exact", "stale"}  # stale where v1 was not faster than untuned, which is about speed
    assert "cluster" in results["d"].counts
    assert "diffused" in results["d"].saved_ms
    assert "carried" in results["e"].counts
    assert results["e"].trials == 0


@pytest.mark.slow
def test_what_has_a_result_is_not_run_again(results: Mapping[str, Result], sitting: Sitting) -> None:
    before = sitting.results.read_bytes()
    assert run_part([COMPARISON], sitting)
    assert sitting.results.read_bytes() == before


@pytest.mark.slow
def test_results_become_a_report(results: Mapping[str, Result], tmp_path: Path) -> None:
    [found] = all_versus(Table(results.values()), "tiny", "b", "d")
    assert found.latency > 0.0
    assert "| tiny | (b) | (d) |" in render(list(results.values()))
    assert draw(list(results.values()), tmp_path / "curves.png").stat().st_size > 1000


@pytest.mark.slow
def test_untouched_tuning_is_noted_by_the_callback(sitting: Sitting) -> None:
    """(a) on warm workers: its own would import for half a minute each round."""
    job = job_of(COMPARISON, sitting.work)
    target = resolve_target(job.second.target)
    import_intrinsics(target.kind.name)
    with WarmPool(target) as pool, light_share(job.light_share):
        result = stock.untouched(job, WarmBuilder(pool), WarmRunner(pool))
    assert 0 < result.trials <= result.n_tasks * TRIALS
    assert result.final_ms <= result.untuned_ms
    assert result.equal


def test_ablations_ask_for_switches_that_are_there() -> None:
    assert set(ABLATIONS) == {*VARIANTS, FULL_WARM, FULL_COLD}
    request = TuneRequest(NetworkSpec("a", "a", "1", "a.onnx"))
    for changes, policy in ABLATIONS.values():
        changed_request(request, changes, policy)
    with pytest.raises(Missing, match="no_such_switch"):
        changed_request(request, {"no_such_switch": True}, {})


def test_a_mode_does_not_outlive_the_sitting(sitting: Sitting, tmp_path: Path) -> None:
    over = begin(sitting.work, tmp_path / "results.jsonl", limit_minutes=0)
    with pytest.raises(OutOfTime):
        run_comparison(COMPARISON, over)
    with pytest.raises(OutOfTime):
        _run_process(["sleep", "600"], tmp_path / "log", limit_s=0.1)
    assert not (tmp_path / "results.jsonl").exists()
