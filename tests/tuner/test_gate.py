"""The gate's rules on made-up timings, and on two real networks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bcd_registry.blobs.memory import MemoryBlobs
from bcd_registry.catalog.sql import SqlCatalog
from bcd_registry.errors import NotFound
from bcd_registry.model import NetworkSpec
from bcd_registry.registry import Registry
from bcd_tuner import gate as gate_module
from bcd_tuner.gate import Baseline, Limits, Ratio, judge, ratio_of, run_gate, time_until_sure
from bcd_tuner.published import Coverage, read_published
from bcd_tuner.shipping import compile_to
from tests.tuner.published_networks import publish_by_hand, quiet, write_network

FULL = Coverage(10, 10, 1.0)
RUNS = (1e-3, 1e-3, 1e-3)


def noisy(mean_s: float, n: int = 60, spread: float = 0.02, seed: int = 0) -> tuple[float, ...]:
    return tuple(mean_s * (1 + spread * np.random.default_rng(seed).standard_normal(n)))


def verdicts(limits: Limits, ratio: Ratio, coverage: Coverage = FULL) -> dict[str, bool]:
    return {rule.name: rule.passed for rule in judge(limits, ratio, RUNS, RUNS, coverage)}


def test_the_interval_holds_the_ratio() -> None:
    found = ratio_of(noisy(1.1e-3, seed=1), noisy(1e-3, seed=2), seed=0)
    assert found.low < found.value < found.high
    assert found.low < 1.1 < found.high
    assert found.high - found.low < 0.03


def test_the_same_runs_give_the_same_interval() -> None:
    new, old = noisy(1.1e-3, seed=1), noisy(1e-3, seed=2)
    assert ratio_of(new, old, seed=3) == ratio_of(new, old, seed=3)


def test_a_network_against_itself_is_at_one() -> None:
    runs = noisy(1e-3, spread=0.5)
    assert ratio_of(runs, runs, seed=0) == Ratio(1.0, 1.0, 1.0)


def test_what_disturbs_both_in_a_turn_does_not_widen_the_interval() -> None:
    disturbed = np.where(np.random.default_rng(5).random(100) < 0.4, 3.0, 1.0)
    found = ratio_of(tuple(1.05e-3 * disturbed), tuple(1e-3 * disturbed), seed=0)
    assert [found.low, found.high] == pytest.approx([1.05, 1.05])


@pytest.mark.parametrize(
    ("ratio", "passed", "words"),
    [
        (Ratio(1.01, 1.00, 1.02), True, "not slower"),
        (Ratio(1.04, 1.02, 1.06), True, "the noise may hide one"),
        (Ratio(1.05, 1.04, 1.06), False, "slower: 1 ms against 1 ms: 1.050 times"),
        (Ratio(0.5, 0.4, 0.6), True, "not slower"),
    ],
)
def test_a_regression_counts_when_the_interval_says_so(ratio: Ratio, passed: bool, words: str) -> None:
    rule = judge(Limits(max_regression=0.03), ratio, RUNS, RUNS, FULL)[0]
    assert (rule.name, rule.passed) == ("regression", passed)
    assert words in rule.reason


def test_coverage_and_untuned_tasks() -> None:
    even, part = Ratio(1.0, 1.0, 1.0), Coverage(10, 8, 0.94)
    assert verdicts(Limits(), even) == {"regression": True, "coverage": True}
    assert verdicts(Limits(min_coverage=0.95, max_untuned=2), even, part) == {
        "regression": True,
        "coverage": False,
        "untuned": True,
    }
    assert verdicts(Limits(min_coverage=0.9, max_untuned=1), even, part) == {
        "regression": True,
        "coverage": True,
        "untuned": False,
    }


def test_a_network_without_tasks_is_covered() -> None:
    nothing = Coverage(0, 0, 1.0)
    assert nothing.of_tasks == 1.0
    assert verdicts(Limits(max_untuned=0), Ratio(1.0, 1.0, 1.0), nothing) == dict.fromkeys(
        ("regression", "coverage", "untuned"), True
    )


def test_one_disturbed_timing_is_no_regression(monkeypatch: pytest.MonkeyPatch) -> None:
    slow, calm = [(2e-3,) * 5, (1e-3,) * 5], [(1e-3,) * 5, (1e-3,) * 5]
    coming = iter([slow, slow, calm, slow])
    monkeypatch.setattr(gate_module, "time_in_turns", lambda *_: next(coming))
    assert time_until_sure(lambda: None, lambda: None, 0.03) == tuple(calm)
    coming = iter([slow, slow, slow, calm])
    assert time_until_sure(lambda: None, lambda: None, 0.03) == tuple(slow)


@pytest.fixture(scope="module")
def specs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, NetworkSpec]:
    """A small and a far larger network."""
    folder = tmp_path_factory.mktemp("networks")
    sizes = {"small": 12, "large": 64}
    return {
        name: NetworkSpec(name, "tiny", name, str(write_network(folder / f"{name}.onnx", size=size)))
        for name, size in sizes.items()
    }


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory, specs: dict[str, NetworkSpec]) -> Iterator[Registry]:
    with SqlCatalog.open_file(tmp_path_factory.mktemp("registry") / "catalog.db") as catalog:
        registry = Registry(catalog, MemoryBlobs())
        for spec in specs.values():
            publish_by_hand(spec, registry)
        yield registry


def test_a_far_larger_network_does_not_pass(specs: dict[str, NetworkSpec], registry: Registry) -> None:
    report = run_gate(specs["large"], Baseline("small", specs["small"]), registry, Limits(), quiet, repeats=15)
    assert not report.passed
    assert [rule.name for rule in report.rules if not rule.passed] == ["regression"]
    assert report.ratio.low > 1.03
    assert report.as_json()["passed"] is False


@pytest.mark.slow
def test_a_lock_and_a_folder_to_compare_with(specs: dict[str, NetworkSpec], registry: Registry, tmp_path: Path) -> None:
    spec = specs["large"]
    lock = read_published(spec, registry, quiet).lock()
    folder = tmp_path / "out"
    compile_to(folder, spec, registry, quiet)
    for baseline in (Baseline("x.lock", spec, lock), Baseline("out", folder=folder)):
        report = run_gate(specs["small"], baseline, registry, Limits(max_untuned=0), quiet, repeats=15)
        assert report.passed, report.rules
        assert report.against == baseline.label
        assert {t.runs for t in report.timings.values()} == {15}


def test_an_untuned_version_is_no_measure(specs: dict[str, NetworkSpec], registry: Registry, tmp_path: Path) -> None:
    unknown = NetworkSpec("v0", "tiny", "v0", str(write_network(tmp_path / "v0.onnx", size=10, channels=3, classes=2)))
    with pytest.raises(NotFound, match="nothing to compare with: the registry has no schedule of v0") as caught:
        run_gate(specs["small"], Baseline("v0", unknown), registry, Limits(), quiet)
    assert caught.value.exit_code == 4
    assert "tune --model v0" in caught.value.hint
