"""Tasks and matches to plan with: plain values, no compiler."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bcd_registry.model import Grade, Match, Prior, RecordState, Task, TuningRecord
from bcd_registry.testing.values import hex_of, make_record, make_workload

ENVIRONMENT = hex_of("environment")


def make_task(
    name: str,
    *,
    op: str = "",
    cluster: str = "",
    extents: tuple[int, ...] = (16, 32, 64),
    weight: int = 1,
    flops: float = 1e6,
) -> Task:
    """A task whose cost is its operations."""
    workload = make_workload(name, cluster=cluster or name, extents=extents)
    return Task(name, replace(workload, flops=flops, op=op or workload.op), weight)


def cold(task: Task) -> Match:
    """Nothing is known."""
    return Match(task.workload, Grade.COLD, None, (), "nothing is known")


def exact(task: Task, **changes: Any) -> Match:
    """A published schedule."""
    record = make_record(task.workload, ENVIRONMENT, state=RecordState.PUBLISHED, **changes)
    return Match(task.workload, Grade.EXACT, record, (), "published")


def known(task: Task, grade: Grade, *records: TuningRecord, source: Task | None = None) -> Match:
    """Records to diffuse from, of the task itself or of another."""
    workload = (source or task).workload
    found = records or (make_record(workload, ENVIRONMENT),)
    distance = workload.distance(task.workload)
    return Match(task.workload, grade, None, tuple(Prior(r, workload, distance, grade) for r in found), str(grade))


def own_record(task: Task, **changes: Any) -> TuningRecord:
    """A record of the task's own workload."""
    return make_record(task.workload, ENVIRONMENT, **changes)
