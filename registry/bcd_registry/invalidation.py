"""What an invalidation would take back, before it does: how many records, of which networks, and what is served then."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from .lookup import grade_workloads
from .model import Event, Grade, Json, RecordState, Selection, TuningRecord
from .registry import Registry

MOST_LOOKED_UP = 500
"""Workloads whose answers are looked up for a preview; with more of them it is not said."""


@dataclass(frozen=True, slots=True)
class Recalled:
    """What can be taken back, or was.

    Attributes:
        selection: How the records were chosen, as plain JSON.
        records: Those that are served today, whatever for, newest first, then their descendants.
        n_descendants: How many of them were only diffused from what was chosen.
        n_before: Records that the selection names as well, taken back earlier.
        networks: Name and version of those whose tasks lose a record, and whether each is pinned.
        grades: For the workloads that lose a published record: what a lookup in the same environment then answers; None when
            these are too many to look up.
    """

    selection: Mapping[str, Json]
    records: tuple[TuningRecord, ...]
    n_descendants: int
    n_before: int
    networks: tuple[tuple[str, str, bool], ...]
    grades: Mapping[Grade, int] | None

    @property
    def n_published(self) -> int:
        """How many of the records are served as results."""
        return sum(record.state is RecordState.PUBLISHED for record in self.records)

    @property
    def n_workloads(self) -> int:
        """How many workloads the records are of."""
        return len({record.workload_key for record in self.records})

    def as_json(self) -> dict[str, Json]:
        """Plain JSON, ids included."""
        return {
            "selection": dict(self.selection),
            "records": [record.id for record in self.records],
            "published": self.n_published,
            "descendants": self.n_descendants,
            "invalidated_before": self.n_before,
            "workloads": self.n_workloads,
            "networks": [{"name": name, "version": version, "pinned": pinned} for name, version, pinned in self.networks],
            "served_then": None if self.grades is None else dict(self.grades),
        }


def find_recalled(
    registry: Registry, selection: Selection, *, with_descendants: bool = False, clock: Callable[[], float] = time.time
) -> Recalled:
    """What `recall` would take back; nothing is changed.

    Args:
        with_descendants: Take back what was diffused from the chosen records as well, over all generations.
        clock: Unix seconds.

    Raises:
        RegistryError: The registry cannot be used.
    """
    chosen = registry.select(selection)
    taught = registry.descendants([record.id for record in chosen]) if with_descendants and chosen else []
    records = [record for record in (*chosen, *taught) if not record.invalidated]
    keys = {record.workload_key for record in records}
    pins = registry.list_pins() if records else set()
    return Recalled(
        selection={**selection.as_json(), **({"with_descendants": True} if with_descendants else {})},
        records=tuple(records),
        n_descendants=sum(not record.invalidated for record in taught),
        n_before=sum(bool(record.invalidated) for record in (*chosen, *taught)),
        networks=tuple(
            (network.name, network.version, (network.name, network.version) in pins)
            for network in (registry.list_networks() if records else ())
            if any(task.workload.key in keys for task in network.tasks)
        ),
        grades=_grades_then(registry, records, clock()),
    )


def recall(registry: Registry, recalled: Recalled, reason: str) -> Event:
    """Take back what was found.

    Raises:
        ConfigError: There is no record, or no reason.
        RegistryError: The registry cannot be used; then nothing is taken back.
    """
    return registry.invalidate([record.id for record in recalled.records], reason, selection=recalled.selection)


def _grades_then(registry: Registry, records: Sequence[TuningRecord], now_s: float) -> dict[Grade, int] | None:
    """Grades of the workloads that lose a published record, each in the environment that it loses it in."""
    gone = {record.id for record in records}
    by_environment: dict[str, set[str]] = {}
    for record in records:
        if record.state is RecordState.PUBLISHED:
            by_environment.setdefault(record.environment_key, set()).add(record.workload_key)
    if sum(map(len, by_environment.values())) > MOST_LOOKED_UP:
        return None
    counts: Counter[Grade] = Counter()
    for environment_key, keys in by_environment.items():
        counts.update(_grades_in(registry, environment_key, keys, gone, now_s))
    return {grade: counts[grade] for grade in Grade if counts[grade]}


def _grades_in(registry: Registry, environment_key: str, keys: Iterable[str], gone: set[str], now_s: float) -> Iterable[Grade]:
    workloads = list(registry.get_workloads(sorted(keys)).values())
    known = registry.find_known(workloads)
    left = replace(known, records=[record for record in known.records if record.id not in gone])
    environment = registry.get_environment(environment_key)
    return [m.grade for m in grade_workloads(workloads, left, environment, {}, policy=registry.policy, now_s=now_s)]
