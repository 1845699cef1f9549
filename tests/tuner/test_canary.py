"""Stored records measured again on a real pool: what holds, what drifted, what is wrong, and what the registry learns of it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tvm.s_tir import Schedule

from bcd_registry.blobs.memory import MemoryBlobs
from bcd_registry.catalog.read_only import ReadOnlyCatalog
from bcd_registry.catalog.sql import SqlCatalog
from bcd_registry.errors import ConfigError, NotFound
from bcd_registry.model import EventKind, Grade, Json, RecordState, Task, TuningRecord
from bcd_registry.registry import Registry
from bcd_registry.testing.values import ENVIRONMENT
from bcd_tuner.canary import CanaryRequest, Stored, check_network_records, choose, distrust
from bcd_tuner.canary_report import CanaryReport, RecordCheck
from bcd_tuner.drift import RecordVerdict
from bcd_tuner.plan import plan_tasks
from bcd_tuner.prepare import Planner, Prepared
from bcd_tuner.replay import replay
from bcd_tuner.report import ProgressEvent
from bcd_tuner.session import TuneRequest, plan, tune
from tests.tuner.planned_tasks import exact, make_task, own_record
from tests.tuner.published import Published, measure_network, planted

HOLDING = (RecordVerdict.STEADY, RecordVerdict.FASTER, RecordVerdict.UNCLEAR, RecordVerdict.UNTUNED)
"""What a record that did not change may be called on a machine that others use as well."""


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Published:
    return measure_network(tmp_path_factory.mktemp("network"))


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqlCatalog]:
    with SqlCatalog.open_file(tmp_path / "catalog.db") as catalog:
        yield catalog


@pytest.fixture
def registry(catalog: SqlCatalog) -> Registry:
    return Registry(catalog, MemoryBlobs())


def check(
    published: Published, registry: Registry, observe: Callable[[ProgressEvent], None] | None = None, **options: Any
) -> CanaryReport:
    return check_network_records(CanaryRequest(published.spec, **options), registry, progress=observe or (lambda event: None))


def of_record(report: CanaryReport, record: TuningRecord) -> RecordCheck:
    return next(check for check in report.records if check.record == record.id)


def test_what_did_not_change_holds(published: Published, registry: Registry) -> None:
    published.fill(registry)
    events: list[ProgressEvent] = []
    report = check(published, registry, events.append)
    assert report.holds, report
    assert {c.record for c in report.records} == {r.id for r in published.records}
    assert all(c.verdict in HOLDING for c in report.records)
    assert RecordVerdict.UNTUNED in {c.verdict for c in report.records}
    assert report.machine is not None
    assert (report.n_known, report.marked) == (len(published.records), True)
    costs = [c.weight * c.stored_ms for c in report.records]
    assert costs == sorted(costs, reverse=True)
    assert registry.list_events() == []
    assert {r.state for r in registry.list_records()} == {RecordState.PUBLISHED}
    assert list(dict.fromkeys(event.phase for event in events)) == ["read", "lower", "lookup", "check"]
    assert json.loads(json.dumps(report.as_json(), allow_nan=False))["holds"] is True


def test_what_drifted_is_a_prior_until_it_holds_again(published: Published, registry: Registry) -> None:
    drifted = published.of_op("conv2d")
    published.fill(registry, planted(drifted))
    report = check(published, registry)
    found = of_record(report, drifted)
    assert not report.holds
    assert (found.verdict, found.confirmed) == (RecordVerdict.DRIFTED, True)
    assert (found.factor or 0.0) > 10
    assert [c.verdict for c in report.records if c.bad] == [RecordVerdict.DRIFTED]
    [event] = registry.list_events()
    assert (event.kind, event.records) == (EventKind.DRIFTED, (drifted.id,))
    assert event.selection["network"] == ["tiny", "v1"]
    assert registry.get_record(drifted.id).drift == found.reason
    planned = {t.workload_key: t for t in plan(TuneRequest(published.spec), registry, progress=lambda event: None).tasks}
    stale = planned.pop(drifted.workload_key)
    assert stale.grade is Grade.STALE
    assert "as slow as stored" in stale.note
    assert {t.grade for t in planned.values()} == {Grade.EXACT}

    registry.publish([drifted])
    held = check(published, registry)
    assert held.holds
    assert of_record(held, drifted).doubted == found.reason
    if of_record(held, drifted).good:  # not on a machine too busy to tell
        assert registry.get_record(drifted.id).drift == ""
        assert registry.list_events()[0].kind is EventKind.STEADY


def test_what_is_wrong_or_does_not_replay_is_quarantined(
    published: Published, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong, other = published.of_op("conv2d"), published.of_op("matmul")
    published.fill(registry, dataclasses.replace(other, trace=[[], [["no decision"]]]))
    sabotage(monkeypatch, wrong)
    report = check(published, registry)
    assert {c.record for c in report.records if c.bad} == {wrong.id, other.id}
    for record, reason, confirmed in ((wrong, "differs", True), (other, "does not replay", False)):
        found, stored = of_record(report, record), registry.get_record(record.id)
        assert (found.verdict, found.confirmed) == (RecordVerdict.FAILED, confirmed)
        assert reason in found.reason
        assert (stored.state, stored.reason) == (RecordState.QUARANTINED, found.reason)


def sabotage(monkeypatch: pytest.MonkeyPatch, record: TuningRecord) -> None:
    """Let the record's trace become a program that keeps its sums in whole numbers: no instruction of a trace does that."""

    def replay_or_round(mod: Any, trace: Json) -> Schedule:
        if trace != record.trace:
            return replay(mod, trace)
        schedule = Schedule(mod)
        sums = next(b for b in schedule.get_child_blocks(schedule.get_sblock("root")) if len(schedule.get(b).iter_vars) > 4)
        schedule.cache_write(sums, 0, "global")
        schedule.unsafe_set_dtype(sums, 0, "int32")
        return schedule

    monkeypatch.setattr("bcd_tuner.canary.replay", replay_or_round)


def test_what_the_registry_refuses_is_said(published: Published, registry: Registry, catalog: SqlCatalog) -> None:
    drifted = published.of_op("conv2d")
    published.fill(registry, planted(drifted))
    report = check(published, Registry(ReadOnlyCatalog(catalog), registry._blobs))
    assert of_record(report, drifted).verdict is RecordVerdict.DRIFTED
    assert not report.marked
    assert any("was not told" in note for note in report.notes)
    assert registry.get_record(drifted.id).drift == ""


def test_an_interrupt_leaves_the_registry_as_it_was(published: Published, registry: Registry) -> None:
    def interrupt(event: ProgressEvent) -> None:
        if event.phase == "check" and "again" in event.message:
            raise KeyboardInterrupt

    published.fill(registry, planted(published.of_op("conv2d")))
    with pytest.raises(KeyboardInterrupt):
        check(published, registry, interrupt)
    assert registry.list_events() == []
    assert {(r.state, r.drift) for r in registry.list_records()} == {(RecordState.PUBLISHED, "")}


def test_where_nothing_is_published_there_is_nothing_to_check(published: Published, registry: Registry) -> None:
    with pytest.raises(NotFound, match="tiny v1") as caught:
        check(published, registry)
    assert "tune" in caught.value.hint


@pytest.mark.slow
def test_a_tune_measures_before_it_reuses(published: Published, registry: Registry) -> None:
    drifted = published.of_op("conv2d")
    published.fill(registry, planted(drifted))
    report = tune(TuneRequest(published.spec, canary=10), registry, progress=lambda event: None)
    tasks = {task.workload_key: task for task in report.tasks}
    stale = tasks.pop(drifted.workload_key)
    assert stale.grade is Grade.STALE
    assert stale.trials > 0
    assert {task.grade for task in tasks.values()} == {Grade.EXACT}
    assert any(note.startswith("canary: ") and "1 drifted" in note for note in report.notes)
    assert registry.get_record(drifted.id).drift
    assert report.time_s.total <= report.wall_s


def stored(name: str, median_s: float, weight: int = 1) -> Stored:
    task = make_task(name, weight=weight)
    return Stored(task, None, own_record(task, run_times_s=(median_s,)))


def test_a_sample_is_drawn_by_cost_and_seed() -> None:
    known = [stored("heavy", 1.0), stored("called often", 1e-3, weight=500), *(stored(f"light {i}", 1e-6) for i in range(8))]
    assert {s.task.name for seed in range(20) for s in choose(known, 2, seed)} == {"heavy", "called often"}
    assert choose(known, 3, 7) == choose(known, 3, 7)
    assert [s.task.name for s in choose(known, None, 0)][:2] == ["heavy", "called often"]
    assert choose(known, 99, 0) == choose(known, None, 0)
    assert choose([], 3, 0) == []


@pytest.mark.parametrize("options", [{"sample": 0}, {"sample": -1}, {"seed": -1}])
def test_samples_and_seeds_that_make_no_sense(published: Published, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        CanaryRequest(published.spec, **options)


def test_a_registry_that_is_only_read_still_serves_what_the_run_distrusts() -> None:
    tasks = [make_task("a"), make_task("b")]
    matches = [exact(task) for task in tasks]
    records = [match.record for match in matches]
    prepared = prepared_of(tasks, plan_tasks(tasks, matches, {t.workload.key: 32 for t in tasks}))
    assert distrust(prepared, {}) is prepared
    first = records[0]
    assert first is not None
    changed = distrust(prepared, {first.id: "twice as slow"})
    [a, b] = changed.planned
    assert (a.match.grade, a.match.reason) == (Grade.STALE, "drifted: twice as slow")
    assert [prior.record for prior in a.priors] == [first]
    assert a.trials > 0
    assert (b.match.grade, b.match.record) == (Grade.EXACT, records[1])
    assert list(changed.reused) == [tasks[1].workload.key]


def prepared_of(tasks: list[Task], planned: Any) -> Prepared:
    lowered = cast("Any", SimpleNamespace(tasks=[SimpleNamespace(task=task) for task in tasks]))
    keys = {t.workload.key: t.workload.cluster for t in tasks}
    planner = Planner(lowered, cast("Any", None), ENVIRONMENT, dict.fromkeys(keys, 32), keys)
    reused = cast("Any", dict.fromkeys(keys, "a schedule"))
    return Prepared(cast("Any", None), lowered, tuple(planned), reused, planner)
