from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bcd_registry.model import NetworkSpec

from . import parts
from .compare import Goal, Table, goals, latency_at, seconds_to, versus
from .networks import CLAIMS, PAIRS
from .parts import PARTS, missing_modes
from .report import DOCUMENT, PICTURE, RESULTS, render
from .results import Job, Point, Result, Runs, read_results
from .run import listing
from .scale import SCALES, Scale, percentile, read_scales, write_scales


def made(pair: str, seed: int, mode: str, curve: Sequence[Point], **changes: Any) -> Result:
    """A result that nobody measured."""
    values: dict[str, Any] = {
        "trials": curve[-1][1],
        "depth": 64,
        "n_tasks": 77,
        "curve": tuple(curve),
        "checked_untuned_ms": curve[0][2],
        "checked_ms": curve[-1][2],
        "equal": True,
        "end_to_end": {"tuned": Runs(2.0, 1.9, 2.1), "onnxruntime": Runs(3.0, 2.9, 3.1)},
        "time_s": {"search": curve[-1][0], "build": 0.0, "run": 0.0, "other": 0.0},
        "peak_rss_bytes": 2 << 30,
        "facts": {"sitting": "once"},
    }
    return Result(pair, seed, mode, **{**values, **changes})


SLOW = [(0.0, 0, 100.0), (50.0, 100, 20.0), (100.0, 400, 10.0)]
FAST = [(0.0, 0, 100.0), (5.0, 60, 12.0), (8.0, 80, 9.0)]
NEVER = [(0.0, 0, 100.0), (5.0, 60, 12.0)]


def test_ratios_are_to_the_baselines_final_latency() -> None:
    found = versus(made("det", 0, "b", SLOW), made("det", 0, "d", FAST))
    assert (found.seconds, found.trials) == (100 / 8, 400 / 80)
    assert found.latency == pytest.approx(10 / 9)
    assert found.near == 100 / 8


def test_what_is_never_reached_is_no_ratio() -> None:
    found = versus(made("det", 0, "b", SLOW), made("det", 0, "c", NEVER))
    assert (found.seconds, found.trials, found.near) == (0.0, 0.0, 0.0)
    assert found.latency == pytest.approx(10 / 12)


def test_against_stock_the_better_of_its_two_figures_counts() -> None:
    stock = made("bert", 0, "a", SLOW, checked_ms=9.5)
    assert versus(stock, made("bert", 0, "d", [*FAST[:2], (7.0, 70, 9.8), FAST[-1]])).seconds == 100 / 8


def test_a_search_that_has_ended_keeps_its_latency() -> None:
    assert latency_at(FAST, 6.0) == 12.0
    assert latency_at(FAST, 1000.0) == 9.0
    assert seconds_to(NEVER, 10.0) is None


def by_text(results: Sequence[Result], words: str) -> Goal:
    return next(goal for goal in goals(Table(results)) if words in goal.text)


def test_a_goal_without_its_networks_stays_open() -> None:
    results = [made("det", seed, mode, curve) for seed in (0, 1, 2) for mode, curve in (("b", SLOW), ("d", FAST))]
    goal = by_text(results, "seconds to (b)'s final latency, (d)")
    assert goal.met is None
    assert goal.missing == ("bert",)
    assert "12.50" in goal.figure
    both = [*results, *(made("bert", 0, mode, curve) for mode, curve in (("b", SLOW), ("d", FAST)))]
    assert by_text(both, "seconds to (b)'s final latency, (d)").met
    assert by_text(both, "seconds to (b)'s final latency, (c)").figure == ""


def test_one_network_that_never_gets_there_misses_the_goal() -> None:
    results = [made(pair, 0, "b", SLOW) for pair in CLAIMS]
    results += [made("det", 0, "c", FAST), made("bert", 0, "c", NEVER)]
    goal = by_text(results, "seconds to (b)'s final latency, (c)")
    assert goal.met is False
    assert "never" in goal.figure


def test_worse_means_beyond_the_range_of_the_baseline() -> None:
    results = [made("det", seed, "b", [*SLOW[:2], (100.0, 400, ms)]) for seed, ms in ((0, 10.0), (1, 12.5))]
    within = [made("det", seed, "c", NEVER) for seed in (0, 1)]
    assert by_text([*results, *within], "is worse").met is None
    beyond = [made("det", seed, "c", [(0.0, 0, 100.0), (9.0, 90, 13.0)]) for seed in (0, 1)]
    assert by_text([*results, *beyond], "is worse").met is False


def test_libraries_are_compared_network_by_network() -> None:
    results = [made(pair, 0, "d", FAST) for pair in PAIRS]
    assert by_text(results, "onnxruntime and PyTorch").met
    slow = {"tuned": Runs(4.0, 3.9, 4.1), "onnxruntime": Runs(3.0, 2.9, 3.1), "torch": Runs(5.0, 4.9, 5.1)}
    results = [
        made(pair, 0, "d", FAST, end_to_end=slow if i < 3 else {"tuned": Runs(1, 1, 1), "torch": Runs(2, 2, 2)})
        for i, pair in enumerate(PAIRS)
    ]
    assert by_text(results, "onnxruntime and PyTorch").met is False


def test_every_comparison_is_in_one_part_and_parts_are_short_enough() -> None:
    planned = [(c.pair, c.seed) for part in PARTS for c in part if "b" in c.modes]
    assert len(planned) == len(set(planned))
    assert set(planned) == {(pair.name, seed) for pair in PAIRS.values() for seed in pair.seeds}
    assert len({c.pair for part in PARTS for c in part if "full-warm" in c.modes}) == 2
    assert all(sum(c.minutes for c in part) <= 150 for part in PARTS)


def test_the_listing_says_what_is_missing() -> None:
    comparison = PARTS[0][0]
    results = [made(comparison.pair, comparison.seed, mode, FAST) for mode in comparison.modes[:2]]
    assert missing_modes(comparison, results) == list(comparison.modes[2:])
    text = "\n".join(listing(results))
    assert f"missing {', '.join(comparison.modes[2:])}" in text
    assert "make bench PART=1" in text


def test_modes_of_one_comparison_in_two_sittings_are_told() -> None:
    once, twice = made("det", 0, "b", SLOW), made("det", 0, "c", FAST, facts={"sitting": "twice"})
    assert parts.is_whole(PARTS[0][0], [once])
    assert "more than one sitting: det seed 0" in render([once, twice])


def test_the_conditions_name_the_seeds_that_were_measured() -> None:
    text = render([made("bert", 1, "b", SLOW), made("bert", 2, "b", SLOW), made("rec", 0, "b", SLOW)])
    assert "bert, seed 1 and 2; rec, seed 0\n" in text


def test_without_results_the_report_says_what_is_missing() -> None:
    text = render([])
    assert "not measured" in text
    assert all(f"`make bench PART={n}`" in text for n in range(1, len(PARTS) + 1))


def test_what_a_file_holds_is_what_was_written() -> None:
    job = Job("det", 1, NetworkSpec("a", "a", "2", "a.onnx", shapes={"x": (1, 3)}), None, "home")
    assert Job.from_json(job.as_json()) == job
    result = made("det", 0, "b", [(0.0, 0, 1 / 3), (math.pi, 4, 0.25)])
    again = Result.from_json(result.as_json())
    assert again.curve == ((0.0, 0, 0.333333), (3.14159, 4, 0.25))
    assert again.end_to_end == result.end_to_end


def test_the_document_is_what_the_results_say() -> None:
    picture = str(PICTURE.relative_to(DOCUMENT.parent))
    assert DOCUMENT.read_text(encoding="utf-8") == render(read_results(RESULTS), picture, read_scales(SCALES))


def scale(database: str, n_records: int, lookup_ms: Sequence[float]) -> Scale:
    """A catalog that nobody measured."""
    facts = {"cpu": "Xeon", "cores": 2, "date": "2026-12-01", "revision": "abc", "load": 0.1}
    return Scale(database, n_records, 80, lookup_ms, [1.0, 2.0], 6, 1234.5, [100.0, 300.0], 9.0, facts)


def test_the_scale_of_the_registry_has_a_section() -> None:
    assert "The registry's scale" not in render([])
    text = render([], "", [scale("sqlite", 100_000, [4.0] * 99 + [7.0]), scale("postgresql", 1_000_000, [6.0, 30.0])])
    assert "| sqlite | 100,000 | 4.00 (5: met) | 4.00 | 1.00 | 0.20 (at most 0.30) | 6 | 1234 |" in text
    assert "| postgresql | 1,000,000 | 6.00 (5: **not met**) | 30.00 (20: **not met**) |" in text
    assert "- sqlite, 100,000: 2026-12-01, revision abc: 2 cores of Xeon, load before 0.1; 100 lookups" in text


def test_a_catalog_that_is_measured_again_replaces_the_figures(tmp_path: Path) -> None:
    path = tmp_path / "scale.jsonl"
    assert read_scales(path) == []
    write_scales(path, [scale("sqlite", 100, [1.0]), scale("postgresql", 1000, [2.0])])
    write_scales(path, [scale("postgresql", 1000, [1 / 3])])
    assert [(found.key, found.lookup_ms) for found in read_scales(path)] == [
        (("sqlite", 100), [1.0]),
        (("postgresql", 1000), [0.3333]),
    ]


def test_percentiles() -> None:
    assert [percentile([3.0, 1.0, 2.0], share) for share in (0.0, 0.5, 0.99, 1.0)] == [1.0, 2.0, 3.0, 3.0]
