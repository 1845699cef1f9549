"""A record is replayed on the network's own module before anything counts on it."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tvm_ffi

from bcd_registry.blobs.memory import MemoryBlobs
from bcd_registry.catalog.read_only import ReadOnlyCatalog
from bcd_registry.catalog.sql import SqlCatalog
from bcd_registry.model import Grade, RecordState, TuningRecord, Workload
from bcd_registry.registry import Registry
from bcd_registry.testing.values import ENVIRONMENT, make_record
from bcd_tuner.networks import ImportedNetwork
from bcd_tuner.prepare import Prepared, prepare
from bcd_tuner.replay import trace_as_json
from bcd_tuner.search import TaskSearch
from bcd_tuner.tasks import LoweredNetwork
from tests.tuner import small_networks as small
from tests.tuner import tuning_programs as programs


@functools.cache
def network() -> tuple[ImportedNetwork, LoweredNetwork]:
    """A network with one task, and what it is lowered to."""
    imported = small.matmul_network(rows=16, inner=16, columns=16)
    return imported, small.lowered(imported)


def workload() -> Workload:
    return network()[1].tasks[0].task.workload


def schedules_of(mod: Any, n: int) -> list[Any]:
    context, spaces = programs.context_of(mod)
    search = TaskSearch(mod, spaces, context.space_generator.postprocs, rng=np.random.default_rng(0))
    return [c.schedule for c in search.next_round(n, lambda candidates: None)]


@functools.cache
def fitting() -> list[Any]:
    return schedules_of(network()[1].tasks[0].mod, 2)


@functools.cache
def foreign() -> Any:
    return schedules_of(programs.relu(8, 16), 1)[0]


@pytest.fixture
def catalog() -> Iterator[SqlCatalog]:
    with SqlCatalog.open_memory() as opened:
        yield opened


@pytest.fixture
def registry(catalog: SqlCatalog) -> Registry:
    registry = Registry(catalog, MemoryBlobs())
    registry.put_workloads([workload()])
    registry.put_environment(ENVIRONMENT)
    return registry


def publish(registry: Registry, ms: float, schedule: Any) -> TuningRecord:
    changes: dict[str, Any] = {"run_id": f"run-{ms}", "state": RecordState.CHECKED, "run_times_s": (ms * 1e-3,)}
    key = registry.put_environment(ENVIRONMENT)
    decisions = (("SampleCategorical", round(10 * ms)),)
    record = make_record(workload(), key, trace=trace_as_json(schedule), decisions=decisions, **changes)
    return registry.publish([record])[0]


def prepared(registry: Registry) -> Prepared:
    return prepare(*network(), registry, ENVIRONMENT, trials=8, fresh=False)


def test_a_record_that_does_not_replay_is_quarantined_and_the_next_best_is_served(registry: Registry) -> None:
    broken, second, third = (
        publish(registry, 1, foreign()),
        publish(registry, 2, fitting()[0]),
        publish(registry, 3, fitting()[1]),
    )
    found = prepared(registry)
    [planned] = found.planned
    assert (planned.match.grade, planned.trials) == (Grade.EXACT, 0)
    assert planned.match.record == second
    assert tvm_ffi.structural_equal(found.reused[workload().key].mod, fitting()[0].mod)
    bad = registry.get_record(broken.id)
    assert bad.state is RecordState.QUARANTINED
    assert "does not replay" in bad.reason
    assert [registry.get_record(r.id).state for r in (second, third)] == ["published", "published"]


def test_as_many_as_do_not_replay_are_passed_over(registry: Registry) -> None:
    broken = [publish(registry, 1 + i / 10, foreign()) for i in range(3)]
    good = publish(registry, 2, fitting()[0])
    assert prepared(registry).planned[0].match.record == good
    assert {registry.get_record(r.id).state for r in broken} == {RecordState.QUARANTINED}


def test_when_none_replays_the_task_is_searched(registry: Registry) -> None:
    publish(registry, 1, foreign())
    found = prepared(registry)
    assert (found.planned[0].match.grade, found.reused) == (Grade.COLD, {})
    assert found.planned[0].trials > 0


def test_a_reader_passes_over_what_does_not_replay_and_marks_nothing(catalog: SqlCatalog) -> None:
    blobs = MemoryBlobs()
    writer = Registry(catalog, blobs)
    writer.put_workloads([workload()])
    broken, good = publish(writer, 1, foreign()), publish(writer, 2, fitting()[0])
    reader = Registry(ReadOnlyCatalog(catalog), blobs)
    assert prepared(reader).planned[0].match.record == good
    assert writer.get_record(broken.id).state is RecordState.PUBLISHED


def test_what_was_taken_back_is_not_reused(registry: Registry) -> None:
    best, second = publish(registry, 1, fitting()[0]), publish(registry, 2, fitting()[1])
    event = registry.invalidate([best.id], "measured beside a backup")
    assert prepared(registry).planned[0].match.record == second
    registry.restore(event.id, "it was not")
    assert prepared(registry).planned[0].match.record == best
    registry.mark_drift({best.id: "20% slower", second.id: "20% slower"}, "canary")
    [planned] = prepared(registry).planned
    assert planned.match.grade is Grade.STALE
    assert 0 < planned.trials <= planned.depth // 2
