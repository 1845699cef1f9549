"""What the registry knows of workloads beside what a lookup uses: what `explain` is made from. Nothing is changed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

from .errors import NotFound
from .explain import Evidence, operator_of, relation_of
from .lookup import Known
from .model import Environment, Event, TuningRecord, Workload
from .registry import Registry

_DESCRIBED_PER_WORKLOAD = 16
"""Workloads of its operator that one without relatives is compared with."""


def gather(registry: Registry, workloads: Sequence[Workload]) -> Evidence:
    """Records of the workloads and their relatives, quarantined and invalidated ones as well.

    Raises:
        RegistryError: The registry cannot be used.
    """
    if not workloads:
        return Evidence(Known((), {}, {}))
    known = registry.find_known(workloads)
    seen = {record.id for record in known.records}
    keys, clusters = _unique(w.key for w in workloads), _unique(w.cluster for w in workloads)
    left_out = [r for r in registry.find_left_out(workloads=keys, clusters=clusters) if r.id not in seen]
    everything = _completed(registry, known, left_out)
    lone = [w for w in workloads if not any(relation_of(w, other) for other in everything.workloads.values())]
    return Evidence(everything, left_out, _events(registry, left_out), _find_alike(registry, lone))


def _completed(registry: Registry, known: Known, left_out: Sequence[TuningRecord]) -> Known:
    """With the workloads and environments of what was left out."""
    workloads = _unique(r.workload_key for r in left_out if r.workload_key not in known.workloads)
    keys = _unique(r.environment_key for r in left_out if r.environment_key not in known.environments)
    environments: dict[str, Environment] = {**known.environments, **{key: registry.get_environment(key) for key in keys}}
    found = {**known.workloads, **(registry.get_workloads(workloads) if workloads else {})}
    return Known(known.records, found, environments, known.refutations)


def _events(registry: Registry, left_out: Iterable[TuningRecord]) -> dict[str, Event]:
    """What took records back, by id."""
    events = {}
    for event_id in _unique(record.invalidated for record in left_out if record.invalidated):
        with contextlib.suppress(NotFound):
            events[event_id] = registry.get_event(event_id)
    return events


def _find_alike(registry: Registry, workloads: Sequence[Workload]) -> list[Workload]:
    """For each workload those of its operator with the nearest extents, with their descriptions."""
    if not workloads:
        return []
    found = registry.find_workloads(_unique([*(w.op for w in workloads), *(operator_of(w) for w in workloads)]))
    keys = _unique(key for workload in workloads for key in _nearest(workload, found))
    return list(registry.get_workloads(keys).values()) if keys else []


def _nearest(workload: Workload, found: Iterable[Workload]) -> list[str]:
    """Keys of those with its operator, its very own before others with the first of it."""
    ops = (workload.op, operator_of(workload))
    same = [other for other in found if other.op in ops and other.key != workload.key]
    same.sort(key=lambda other: (other.op != workload.op, workload.distance(other), other.key))
    return [other.key for other in same[:_DESCRIBED_PER_WORKLOAD]]


def _unique(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))
