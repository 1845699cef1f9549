from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from bcd_registry.blobs.memory import MemoryBlobs
from bcd_registry.catalog.sql import SqlCatalog
from bcd_registry.model import Grade, NetworkSpec, PriorSource, RecordState
from bcd_registry.registry import Registry
from bcd_tuner.plan import UNTUNED_SKETCH
from bcd_tuner.report import ProgressEvent, TuneReport
from bcd_tuner.session import TuneRequest, plan, tune

TRIALS = 8

Observed = list[ProgressEvent]


def write_network(path: Path, *, channels: int, classes: int, clipped: bool = False) -> Path:
    """Convolution and relu twice, and a classifier; a newer version has other sizes or another activation."""
    rng = np.random.default_rng(3)

    def weight(name: str, *shape: int) -> Any:
        return numpy_helper.from_array((0.2 * rng.standard_normal(shape)).astype(np.float32), name)

    last = helper.make_node("Clip", ["b", "low", "high"], ["c"]) if clipped else helper.make_node("Relu", ["b"], ["c"])
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Conv", ["r", "w2"], ["b"], pads=[1, 1, 1, 1]),
        last,
        helper.make_node("Flatten", ["c"], ["f"]),
        helper.make_node("Gemm", ["f", "w3", "bias"], ["y"]),
    ]
    weights = [
        weight("w1", 8, 4, 3, 3),
        weight("w2", channels, 8, 3, 3),
        weight("w3", channels * 576, classes),
        weight("bias", classes),
    ]
    if clipped:
        weights += [numpy_helper.from_array(np.array(v, dtype=np.float32), n) for n, v in (("low", 0.0), ("high", 6.0))]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 24, 24])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, classes])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    onnx.save(model, str(path))
    return path


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("networks")
    return {
        "v1": write_network(folder / "v1.onnx", channels=8, classes=10),
        "v2": write_network(folder / "v2.onnx", channels=16, classes=10),
        "v3": write_network(folder / "v3.onnx", channels=12, classes=10, clipped=True),
    }


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A registry that the tests of this module fill in their order."""
    with SqlCatalog.open_file(tmp_path_factory.mktemp("registry") / "catalog.db") as catalog:
        yield Registry(catalog, MemoryBlobs())


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Registry]:
    with SqlCatalog.open_file(tmp_path / "catalog.db") as catalog:
        yield Registry(catalog, MemoryBlobs())


def request_of(networks: dict[str, Path], version: str, *, fresh: bool = False, **changes: Any) -> TuneRequest:
    spec = NetworkSpec("tiny", "tiny", version, str(networks[version]), trials=TRIALS)
    return TuneRequest(dataclasses.replace(spec, **changes), seed=1, fresh=fresh)


def run(request: TuneRequest, registry: Registry, observe: Callable[[ProgressEvent], None] | None = None) -> TuneReport:
    return tune(request, registry, progress=observe or (lambda event: None))


def assert_sound(report: TuneReport) -> None:
    """What holds of every run that came to its end."""
    assert report.checked, report.notes
    assert not report.interrupted
    assert report.trials == sum(task.trials for task in report.tasks)
    assert min(report.time_s.search, report.time_s.build, report.time_s.run, report.time_s.other) >= 0.0
    assert report.time_s.total <= report.wall_s
    assert report.latency_ms.untuned is not None
    assert report.latency_ms.tuned is not None
    assert all(task.before_ms is not None and task.after_ms is not None for task in report.tasks)
    assert report.as_json()["schema"] == 1


@pytest.fixture(scope="module")
def first(networks: dict[str, Path], shared: Registry) -> tuple[TuneReport, Observed]:
    """The first version, tuned with an empty registry."""
    events: Observed = []
    return run(request_of(networks, "v1"), shared, events.append), events


def test_a_network_is_tuned_from_nothing(first: tuple[TuneReport, Observed], shared: Registry) -> None:
    report, _ = first
    assert_sound(report)
    assert report.trials > 0
    assert {task.grade for task in report.tasks} == {Grade.COLD}
    assert all(task.checked for task in report.tasks)
    assert all((task.after_ms or 0.0) <= 1.05 * (task.before_ms or 0.0) for task in report.tasks)
    assert report.saving.trials == 0
    assert report.first_candidate_s is not None
    assert 0.0 < report.first_candidate_s < report.wall_s
    assert report.cost_model["n_samples"] == report.trials
    assert report.cost_model["n_pretrained"] == 0
    assert [n.version for n in shared.list_networks()] == ["v1"]
    assert shared.latest_cost_model(report.target) is not None


def test_the_curve_falls_from_untuned_to_what_was_found(first: tuple[TuneReport, Observed]) -> None:
    report, _ = first
    assert [p.seconds for p in report.curve] == sorted(p.seconds for p in report.curve)
    assert report.curve[0].trials == 0
    assert report.curve[-1].trials == report.trials
    later = [p.estimated_ms for p in report.curve[1:]]
    assert later == sorted(later, reverse=True)
    assert report.curve[-1].seconds <= report.time_s.total


def test_progress_tells_of_every_phase_in_order(first: tuple[TuneReport, Observed]) -> None:
    report, events = first
    phases = list(dict.fromkeys(event.phase for event in events))
    assert phases == ["read", "lower", "lookup", "tune", "check", "compile", "verify"]
    rounds = [event for event in events if event.phase == "tune"]
    assert [event.trials for event in rounds] == [p.trials for p in report.curve[1:]]
    assert rounds[-1].trials == rounds[-1].trials_planned
    assert rounds[-1].left_s == 0.0
    assert [event.elapsed_s for event in events] == sorted(event.elapsed_s for event in events)


def test_the_same_network_again_takes_no_trial(
    first: tuple[TuneReport, Observed], networks: dict[str, Path], shared: Registry
) -> None:
    report = run(request_of(networks, "v1"), shared)
    assert_sound(report)
    assert report.trials == 0
    assert {task.grade for task in report.tasks} == {Grade.EXACT}
    assert all(task.checked for task in report.tasks)
    assert report.saving.trials == first[0].trials
    assert (report.saving.seconds or 0.0) > 0.0
    assert report.first_candidate_s is None
    assert [t.workload_key for t in report.tasks] == [t.workload_key for t in first[0].tasks]
    before = {t.workload_key: t.after_ms for t in first[0].tasks}
    assert all(t.after_ms == pytest.approx(before[t.workload_key], rel=1e-6) for t in report.tasks)


def test_the_plan_says_what_the_tune_then_does(
    first: tuple[TuneReport, Observed], networks: dict[str, Path], shared: Registry
) -> None:
    planned = plan(request_of(networks, "v1"), shared, progress=lambda event: None)
    assert {task.grade for task in planned.tasks} == {Grade.EXACT}
    assert planned.trials == 0
    changed = plan(request_of(networks, "v2"), shared, progress=lambda event: None)
    assert {task.grade for task in changed.tasks} >= {Grade.EXACT, Grade.CLUSTER}
    assert 0 < changed.trials < first[0].trials
    assert changed.seconds_a_trial is not None


@pytest.mark.slow
def test_the_next_version_begins_with_what_the_first_left(
    first: tuple[TuneReport, Observed], networks: dict[str, Path], shared: Registry
) -> None:
    model = shared.latest_cost_model(first[0].target)
    report = run(request_of(networks, "v2"), shared)
    assert_sound(report)
    assert Grade.EXACT in {task.grade for task in report.tasks}
    diffused = [task for task in report.tasks if task.grade is Grade.CLUSTER]
    assert diffused
    assert {task.prior for task in diffused} == {PriorSource.REGISTRY}
    assert report.cost_model["n_pretrained"] == first[0].trials
    assert report.saving.trials > 0
    known = {r.id for r in shared.list_records(network=("tiny", "v1"), limit=1000)}
    children = [r for t in diffused for r in shared.list_records(workload=t.workload_key, limit=100)]
    assert {r.parent_id for r in children} & known
    everything = shared.list_records(limit=10_000)
    assert {r.parent_id for r in everything} <= {None, *(r.id for r in everything)}
    ranked_by = {
        run_id: {r.cost_model_id for r in everything if r.run_id == run_id and r.sketch != UNTUNED_SKETCH}
        for run_id in (first[0].run_id, report.run_id)
    }
    assert model is not None
    assert list(ranked_by.values()) == [{None}, {model.id}]


@pytest.mark.slow
def test_another_epilogue_is_an_anchor_and_fresh_asks_for_nothing(
    first: tuple[TuneReport, Observed], networks: dict[str, Path], shared: Registry
) -> None:
    planned = plan(request_of(networks, "v3"), shared, progress=lambda event: None)
    assert Grade.ANCHOR in {task.grade for task in planned.tasks}
    report = run(request_of(networks, "v3", trials=4), shared)
    assert_sound(report)
    fresh = plan(request_of(networks, "v3", fresh=True), shared, progress=lambda event: None)
    assert {task.grade for task in fresh.tasks} == {Grade.COLD}
    assert PriorSource.REGISTRY not in {task.prior for task in fresh.tasks}


@pytest.mark.slow
def test_fresh_tunes_again_what_is_known_and_publishes_it(
    first: tuple[TuneReport, Observed], networks: dict[str, Path], shared: Registry
) -> None:
    report = run(request_of(networks, "v1", fresh=True, trials=4), shared)
    assert_sound(report)
    assert report.trials > 0
    assert {task.grade for task in report.tasks} == {Grade.COLD}
    assert report.cost_model["n_pretrained"] == 0
    assert report.saving.trials == 0


def test_without_time_all_stays_untuned_and_is_checked(networks: dict[str, Path], empty: Registry) -> None:
    report = run(request_of(networks, "v1", time_budget_s=0.0), empty)
    assert_sound(report)
    assert report.trials == report.saving.trials == 0
    assert all(task.after_ms == task.before_ms for task in report.tasks)
    assert any("time budget" in note for note in report.notes)
    assert empty.list_records() == []
    assert {task.grade for task in plan(request_of(networks, "v1"), empty, progress=lambda event: None).tasks} == {Grade.COLD}


class Interrupt:
    """Ctrl-C after the first round."""

    def __call__(self, event: ProgressEvent) -> None:
        if event.phase == "tune":
            raise KeyboardInterrupt


@pytest.mark.slow
def test_an_interrupted_run_goes_on_where_it_was(networks: dict[str, Path], empty: Registry) -> None:
    request = request_of(networks, "v1", trials=6)
    cut = run(request, empty, Interrupt())
    assert cut.interrupted
    assert not cut.checked
    assert cut.saving.trials == 0
    assert cut.trials > 0
    assert cut.latency_ms.tuned is None
    assert {r.state for r in empty.list_records()} == {RecordState.MEASURED}
    assert not empty.list_runs()[0].finished
    events: Observed = []
    report = run(request, empty, events.append)
    assert_sound(report)
    begun = [task for task in report.tasks if task.grade is Grade.STALE]
    assert len(begun) == 1
    assert {task.grade for task in report.tasks} >= {Grade.STALE}
    assert run(request, empty).trials == 0


def test_the_parts_of_the_tuning_time_add_up(
    networks: dict[str, Path], empty: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: Observed = []
    report = run(request_of(networks, "v1", trials=1), empty, events.append)
    looked_up = next(event.elapsed_s for event in events if event.phase == "lookup")
    checked = next(event.elapsed_s for event in events if event.phase == "check")
    assert report.time_s.total <= checked - looked_up
    assert report.time_s.total >= report.curve[-1].seconds
    assert report.time_s.build > 0.0
    assert report.time_s.run > 0.0
    assert report.time_s.search > 0.0
