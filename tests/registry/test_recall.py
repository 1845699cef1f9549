"""Records are taken back, restored, doubted and followed: what the registry serves meanwhile."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bcd_registry.blobs.local import LocalBlobs
from bcd_registry.catalog.read_only import ReadOnlyCatalog
from bcd_registry.catalog.sql import SqlCatalog
from bcd_registry.errors import ConfigError, NotFound, ReadOnly
from bcd_registry.model import Event, EventKind, Grade, Match, RecordState, Selection, TuningRecord, Workload
from bcd_registry.registry import Registry
from bcd_registry.staleness import DEFAULT_POLICY, OnVersion, StalenessPolicy
from bcd_registry.testing.values import ENVIRONMENT, hex_of, make_environment, make_record, make_workload

OWN = make_workload("own", cluster="c", anchor="a", extents=(16, 64))
SIBLING = make_workload("sibling", cluster="c", anchor="a", extents=(16, 128))
NOW_S = 5000.0


@pytest.fixture
def best(registry: Registry) -> TuningRecord:
    """The fastest published record of `OWN`; `second` is the next."""
    return published(registry, 1)


@pytest.fixture
def second(registry: Registry, best: TuningRecord) -> TuningRecord:
    return published(registry, 2, parent_id=best.id)


def published(registry: Registry, ms: int, **changes: Any) -> TuningRecord:
    registry.put_workloads([OWN, SIBLING])
    key = registry.put_environment(ENVIRONMENT)
    fields: dict[str, Any] = {
        "run_id": f"run-{ms}",
        "decisions": (("SampleCategorical", ms),),
        "run_times_s": (ms * 1e-3,),
        "state": RecordState.CHECKED,
        "created_at": 0.0,
    }
    [record] = registry.publish([make_record(OWN, key, **{**fields, **changes})])
    return record


def served(registry: Registry, workload: Workload = OWN) -> Match:
    [match] = registry.lookup([workload], ENVIRONMENT, {})
    return match


def test_what_is_taken_back_is_served_no_more_and_restored_as_it_was(
    registry: Registry, best: TuningRecord, second: TuningRecord
) -> None:
    before = registry.list_records()
    assert served(registry).record == best
    event = registry.invalidate([best.id, best.id], "measured beside a backup", selection=Selection(record=best.id[:12]))
    assert (event.kind, event.records, event.created_at) == (EventKind.INVALIDATED, (best.id,), NOW_S)
    assert event.selection == {"record": best.id[:12]}
    assert served(registry).record == second
    assert [prior.record.id for prior in served(registry, SIBLING).priors] == [second.id]
    assert registry.get_record(best.id) == dataclasses.replace(best, invalidated=event.id)
    restored = registry.restore([best.id], "it was not")
    assert (restored.kind, restored.records) == (EventKind.RESTORED, (best.id,))
    assert served(registry).record == best
    assert registry.list_records() == before
    assert {e.id for e in registry.list_events(record=best.id)} == {event.id, restored.id}


def test_an_event_is_undone_by_the_beginning_of_its_id(registry: Registry, best: TuningRecord, second: TuningRecord) -> None:
    first = registry.invalidate([best.id], "one", selection={"with_descendants": True})
    other = registry.invalidate([best.id, second.id], "two")
    assert served(registry).grade is Grade.COLD
    undone = registry.restore(other.id[:16], "not two")
    assert (undone.records, undone.selection) == (other.records, {"event": other.id})
    assert served(registry).record == second
    with pytest.raises(NotFound, match="nothing to restore"):
        registry.restore(other.id, "again")
    registry.restore(first.id, "not one")
    assert served(registry).record == best
    with pytest.raises(ConfigError, match="only an invalidation"):
        registry.restore(undone.id, "why not")
    with pytest.raises(NotFound):
        registry.restore("abcdef", "no such event")


def test_what_an_unknown_prior_taught_is_cold_again(registry: Registry, best: TuningRecord, second: TuningRecord) -> None:
    assert registry.descendants([best.id]) == [dataclasses.replace(second, trace=None)]
    assert registry.ancestors(second.id) == [dataclasses.replace(best, trace=None)]
    taught = [best.id, *(record.id for record in registry.descendants([best.id]))]
    registry.invalidate(taught, "a bad prior")
    assert served(registry).grade is Grade.COLD
    assert {record.id for record in registry.find_left_out(workloads=[OWN.key])} == set(taught)
    assert registry.find_workloads([OWN.op]) == []


def test_drift_makes_a_prior_and_a_steady_check_a_result_again(
    registry: Registry, best: TuningRecord, second: TuningRecord
) -> None:
    drifted = registry.mark_drift({best.id: "20% slower"}, "canary", selection={"network": ["ocr", "1"]})
    assert (drifted.kind, drifted.records, drifted.reason) == (EventKind.DRIFTED, (best.id,), "canary")
    assert served(registry).record == second
    registry.mark_drift({second.id: "30% slower"}, "canary")
    stale = served(registry)
    assert (stale.grade, {prior.record.id for prior in stale.priors}) == (Grade.STALE, {best.id, second.id})
    assert stale.reason.startswith("drifted: ")
    assert registry.clear_drift([best.id], "canary").kind is EventKind.STEADY
    assert served(registry).record == best


def test_a_reason_and_records_are_wanted(registry: Registry, best: TuningRecord) -> None:
    calls: tuple[Callable[[], Event], ...] = (
        lambda: registry.invalidate([], "why"),
        lambda: registry.invalidate([best.id], " "),
        lambda: registry.restore([], "why"),
        lambda: registry.restore([best.id], ""),
        lambda: registry.mark_drift({}, "why"),
        lambda: registry.mark_drift({best.id: ""}, "why"),
        lambda: registry.clear_drift([best.id], ""),
    )
    for call in calls:
        with pytest.raises(ConfigError):
            call()
    with pytest.raises(NotFound):
        registry.invalidate([hex_of("none")], "why")
    with pytest.raises(NotFound, match="nothing to restore"):
        registry.restore([best.id], "why")
    assert registry.list_events() == []


def test_selecting_by_age_goes_by_the_registry_s_clock(registry: Registry, best: TuningRecord) -> None:
    old = published(registry, 3, created_at=NOW_S - 100.0)
    assert [record.id for record in registry.select(Selection(older_than_s=99.0))] == [old.id]
    assert len(registry.select(Selection(older_than_s=0.0, workload=OWN.key))) == 1
    assert len(registry.select(Selection(workload=OWN.key))) == 2


@pytest.fixture
def strict(catalog: SqlCatalog, blobs: LocalBlobs) -> Iterator[Registry]:
    """A registry over the same stores with a policy of its own."""
    policy = StalenessPolicy(max_age_s=60.0, on_version=OnVersion.REFUSE)
    with Registry(catalog, blobs, clock=lambda: NOW_S, policy=policy) as opened:
        yield opened


def test_lookups_follow_the_policy(registry: Registry, strict: Registry, best: TuningRecord) -> None:
    old = published(registry, 1, run_id="old", created_at=NOW_S - 61.0, run_times_s=(1e-4,))
    assert (registry.policy, strict.policy.max_age_s) == (DEFAULT_POLICY, 60.0)
    assert served(registry).record == old
    assert served(strict).record == best
    registry.invalidate([best.id], "why")
    assert (served(strict).grade, served(strict).reason) == (Grade.STALE, "measured 1.017 min ago, older than 1 min")
    [elsewhere] = strict.lookup([OWN], make_environment(tvm="0.28.0"), {})
    assert elsewhere.grade is Grade.COLD


def test_a_reader_may_look_but_not_take_back(catalog: SqlCatalog, blobs: LocalBlobs, best: TuningRecord) -> None:
    reader = Registry(ReadOnlyCatalog(catalog), blobs)
    assert len(reader.select(Selection(record=best.id))) == 1
    calls: tuple[Callable[[], Event], ...] = (
        lambda: reader.invalidate([best.id], "why"),
        lambda: reader.restore([best.id], "why"),
        lambda: reader.mark_drift({best.id: "slower"}, "why"),
        lambda: reader.clear_drift([best.id], "why"),
    )
    for call in calls:
        with pytest.raises(ReadOnly) as caught:
            call()
        assert caught.value.exit_code == 9
    assert reader.list_events() == []
