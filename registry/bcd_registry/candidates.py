"""What a lookup chooses from: records that were read, and workloads whose records need not be. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .model import Decision, Environment, Grade, RecordState, Refutation, Relative, TuningRecord, Workload
from .nearest import Neighbours, distance
from .staleness import DEFAULT_POLICY, Difference, FieldClass, StalenessPolicy, compare, doubts

MAX_RECORDS = 8
"""Most records of one workload and environment that are known, the best ones."""

MAX_WORKLOADS = 4
"""Most workloads that one is diffused from, the nearest ones."""

_STATE_RANKS = {state: rank for rank, state in enumerate(RecordState)}

Schedule = tuple[str, str, tuple[Decision, ...]]
"""Workload key, sketch and decisions: what makes two records one prior."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A record with all that decides its rank.

    Attributes:
        id: The record's, which costs a digest each time that the record is asked for it.
        soft: What makes it a prior only: differences of its environment.
        doubts: What does so in any environment: its age and its drift.
        relative: Its median over the best median of its workload in its environment, at least 1.
    """

    id: str
    record: TuningRecord
    workload: Workload
    soft: tuple[Difference, ...]
    doubts: tuple[str, ...]
    relative: float

    @property
    def n_soft(self) -> int:
        """How many things make it a prior only."""
        return len(self.soft) + len(self.doubts)

    @property
    def state_rank(self) -> int:
        """How far it has come."""
        return _STATE_RANKS[self.record.state]

    @property
    def schedule(self) -> Schedule:
        """What makes it one prior with others."""
        return schedule_of(self.record)


Refuted = tuple[Candidate, Refutation]
"""A candidate that is left out, and what keeps it out."""


@dataclass(slots=True)
class _Group:
    """Workloads of one cluster, or with one anchor.

    Attributes:
        candidates: Their records that were read, without those that a hard difference rules out.
        unread: Those of which none was read and some may be used, by key.
        ignored: How many records a hard difference rules out, by workload and environment.
    """

    candidates: list[Candidate] = field(default_factory=list)
    unread: dict[str, Workload] = field(default_factory=dict)
    ignored: dict[tuple[str, str], int] = field(default_factory=dict)
    neighbours: Neighbours | None = None

    def by_distance(self, workload: Workload, grade: Grade) -> Iterable[Workload]:
        """Its workloads, nearest first; none is added once this was asked."""
        if self.neighbours is None:
            read = {c.workload.key: c.workload for c in self.candidates}
            self.neighbours = Neighbours([*read.values(), *self.unread.values()], grade)
        return self.neighbours.by_distance(workload)


_EMPTY = _Group()


class Index:
    """What is known of the relatives of some workloads. Used by one thread.

    A cluster may have thousands of workloads, and few are diffused from: the records of the others need not be read. What is
    found is what all records would give when

    - the records of the workloads that are looked up, and of all of which one was refuted for their clusters, are read;
    - all others in their clusters that have records are read or told, see `add_unread`;
    - so are all with the anchors of those that `orphans` names;
    - and those that `wanted` names are read then.
    """

    def __init__(self, here: Environment, policy: StalenessPolicy = DEFAULT_POLICY, now_s: float = 0.0) -> None:
        """Nothing is known yet.

        Args:
            here: The environment that is looked up for.
            policy: What a difference in version, and an age, mean.
            now_s: Unix seconds, from which ages count.
        """
        self._here, self._policy, self._now_s = here, policy, now_s
        self.hard: dict[str, tuple[Difference, ...]] = {}
        """The hard differences of each known environment, by key."""
        self._soft: dict[str, tuple[Difference, ...]] = {}
        self._own: dict[str, list[Candidate]] = {}
        self._read: set[str] = set()
        self._clusters: dict[str, _Group] = {}
        self._anchors: dict[str, _Group] = {}
        self._refuted: dict[Schedule, list[Refutation]] = {}
        self._misleading: set[str] = set()
        self._refutations: dict[str, list[Refutation]] = {}

    def add_environments(self, environments: Mapping[str, Environment]) -> None:
        """Those of records and refutations, by key, before these themselves; each is compared once."""
        for key, then in environments.items():
            found = compare(then, self._here, self._policy)
            self.hard[key] = tuple(d for d in found if d.field_class is FieldClass.HARD)
            self._soft[key] = tuple(d for d in found if d.field_class is FieldClass.SOFT)

    def add_refutations(self, refutations: Iterable[Refutation]) -> None:
        """Priors that misled workloads of the clusters looked up, in any order, before the records that they are about."""
        for refutation in refutations:
            self._refutations.setdefault(refutation.record_id, []).append(refutation)

    def add_unread(self, relative: Relative) -> None:
        """A workload none of whose records is read; what it has in environments that are not known does not count."""
        workload = relative.workload
        for key, n_records in relative.n_records.items():
            hard = self.hard.get(key)
            if hard is None:
                continue
            for group in self._groups(workload):
                if hard:
                    group.ignored[workload.key, key] = min(n_records, MAX_RECORDS)
                else:
                    group.unread[workload.key] = workload

    def add_read(self, workload: Workload, records: Mapping[str, TuningRecord]) -> None:
        """The records of a workload, by id, in the place of what was known of it."""
        groups = self._groups(workload)
        self._forget(workload, groups)
        medians = {record_id: record.median_s for record_id, record in records.items()}
        best: dict[str, float] = {}
        for record_id, record in records.items():
            best[record.environment_key] = min(best.get(record.environment_key, math.inf), medians[record_id])
        for record_id, record in records.items():
            key = record.environment_key
            self._refute(record_id, record)
            if self.hard[key]:
                for group in groups:
                    group.ignored[workload.key, key] = group.ignored.get((workload.key, key), 0) + 1
                continue
            doubted = doubts(record, self._policy, self._now_s)
            candidate = Candidate(record_id, record, workload, self._soft[key], doubted, medians[record_id] / best[key])
            self._own.setdefault(workload.key, []).append(candidate)
            for group in groups:
                group.candidates.append(candidate)

    def _forget(self, workload: Workload, groups: Iterable[_Group]) -> None:
        """What was known of the workload."""
        again = workload.key in self._read
        self._read.add(workload.key)
        self._own.pop(workload.key, None)
        for group in groups:
            group.unread.pop(workload.key, None)
            for environment_key in self.hard if group.ignored else ():
                group.ignored.pop((workload.key, environment_key), None)
            if again:
                group.candidates = [c for c in group.candidates if c.workload.key != workload.key]

    def own(self, workload: Workload) -> Sequence[Candidate]:
        """Of the workload itself."""
        return self._own.get(workload.key, ())

    def relatives(self, workload: Workload, grade: Grade) -> list[Candidate]:
        """Of other workloads of its cluster; for ANCHOR, of those of other clusters with its anchor."""
        candidates = self._group(workload, grade).candidates
        if grade is Grade.ANCHOR:
            return [c for c in candidates if c.workload.cluster != workload.cluster]
        return [c for c in candidates if c.workload.key != workload.key]

    def unread(self, workload: Workload, grade: Grade) -> set[str]:
        """Keys of its relatives that were not read, and may be diffused from."""
        unread = self._group(workload, grade).unread
        if grade is Grade.ANCHOR:
            return {key for key, other in unread.items() if other.cluster != workload.cluster}
        return unread.keys() - {workload.key}

    def without_refuted(
        self, workload: Workload, candidates: Sequence[Candidate], grade: Grade
    ) -> tuple[Sequence[Candidate], list[Refuted]]:
        """The candidates that may be diffused from, and those that are refuted, each with its newest refutation."""
        if self._misleading.isdisjoint(candidate.workload.key for candidate in candidates):
            return candidates, []
        usable: list[Candidate] = []
        refuted: list[Refuted] = []
        for candidate in candidates:
            found = self._refuted.get(candidate.schedule, ()) if candidate.workload.key in self._misleading else ()
            holding = [refutation for refutation in found if _holds(refutation, workload, candidate, grade)]
            if holding:
                refuted.append((candidate, max(holding, key=age)))
            else:
                usable.append(candidate)
        return usable, refuted

    def ignored(self, workload: Workload, grade: Grade) -> dict[tuple[str, str], int]:
        """How many records a hard difference rules out, by workload and environment.

        Args:
            grade: STALE for the workload's own, CLUSTER for its cluster's, ANCHOR for all with its anchor.
        """
        found = self._group(workload, grade).ignored
        if grade is Grade.STALE:
            return {place: n for place, n in found.items() if place[0] == workload.key}
        return found

    def orphans(self, workloads: Sequence[Workload]) -> list[Workload]:
        """Those that have neither a record that can be used nor a sibling to be diffused from."""
        return [workload for workload in workloads if not self.own(workload) and not self._usable(workload, Grade.CLUSTER)]

    def wanted(self, workloads: Iterable[Workload]) -> list[str]:
        """Keys of the unread among the nearest that the workloads would be diffused from."""
        return list(dict.fromkeys(itertools.chain.from_iterable(self._wanted(workload) for workload in workloads)))

    def _wanted(self, workload: Workload) -> list[str]:
        for grade in (Grade.CLUSTER,) if self.own(workload) else (Grade.CLUSTER, Grade.ANCHOR):
            usable = self._usable(workload, grade)
            if usable:
                ordered = (other.key for other in self._group(workload, grade).by_distance(workload, grade))
                nearest = itertools.islice((key for key in ordered if key in usable), MAX_WORKLOADS)
                unread = self._group(workload, grade).unread
                return [key for key in nearest if key in unread]
        return []

    def _usable(self, workload: Workload, grade: Grade) -> set[str]:
        """Keys of the relatives that may be diffused from."""
        read, _ = self.without_refuted(workload, self.relatives(workload, grade), grade)
        return self.unread(workload, grade) | {candidate.workload.key for candidate in read}

    def _refute(self, record_id: str, record: TuningRecord) -> None:
        """Take the record's refutations that count in this environment: several runs may have found the same schedule.

        A workload is not misled by a record of its own.
        """
        for refutation in self._refutations.pop(record_id, ()):
            if record.workload_key != refutation.workload_key and self.hard.get(refutation.environment_key) == ():
                self._refuted.setdefault(schedule_of(record), []).append(refutation)
                self._misleading.add(record.workload_key)

    def _group(self, workload: Workload, grade: Grade) -> _Group:
        if grade is Grade.ANCHOR:
            return self._anchors.get(workload.anchor, _EMPTY)
        return self._clusters.get(workload.cluster, _EMPTY)

    def _groups(self, workload: Workload) -> tuple[_Group, _Group]:
        cluster, anchor = self._clusters.get(workload.cluster), self._anchors.get(workload.anchor)
        if cluster is None:
            cluster = self._clusters[workload.cluster] = _Group()
        if anchor is None:
            anchor = self._anchors[workload.anchor] = _Group()
        return cluster, anchor


def schedule_of(record: TuningRecord) -> Schedule:
    """What makes the record one prior with others."""
    return record.workload_key, record.sketch, record.decisions


def age(refutation: Refutation) -> tuple[float, str]:
    """What orders refutations, oldest first."""
    return refutation.created_at, refutation.run_id


def _holds(refutation: Refutation, workload: Workload, candidate: Candidate, grade: Grade) -> bool:
    """Whether it keeps the candidate from the workload: the misled one, or one of its cluster that is at least as far."""
    if refutation.workload_key == workload.key:
        return True
    return refutation.cluster == workload.cluster and distance(workload, candidate.workload, grade) >= refutation.distance
