"""The graded lookup: what may be reused, what may be diffused from, and why it was not better. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .model import Decision, Environment, Grade, Match, Prior, RecordState, Refutation, TuningRecord, Workload
from .staleness import DEFAULT_POLICY, Difference, FieldClass, StalenessPolicy, compare, doubts

MAX_PRIORS = 6
"""Most priors of one match."""

MAX_OWN_PRIORS = 3
"""Most of them that are the workload's own records."""

_QUOTAS = ((), (6,), (4, 2), (3, 2, 1), (3, 1, 1, 1))
_MAX_WORKLOADS = len(_QUOTAS) - 1
_STATES = list(RecordState)
_SHOWN_RUN_LENGTH = 8

_Schedule = tuple[str, str, tuple[Decision, ...]]
"""Workload key, sketch and decisions: what makes two records one prior."""


@dataclass(frozen=True, slots=True)
class Known:
    """What the catalog found, quarantined and invalidated records left out.

    Attributes:
        records: In any order.
        workloads: The workload of every record, by key.
        environments: The environment of every record and refutation, by key.
        refutations: Priors that misled workloads of the clusters looked up, in any order.
    """

    records: Sequence[TuningRecord]
    workloads: Mapping[str, Workload]
    environments: Mapping[str, Environment]
    refutations: Sequence[Refutation] = ()


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A record with all that decides its rank.

    Attributes:
        doubts: What makes it a prior only in any environment: its age and its drift.
        relative: Its median over the best median of its workload in its environment, at least 1.
    """

    record: TuningRecord
    workload: Workload
    hard: tuple[Difference, ...]
    soft: tuple[Difference, ...]
    doubts: tuple[str, ...]
    relative: float

    @property
    def n_soft(self) -> int:
        return len(self.soft) + len(self.doubts)

    @property
    def state_rank(self) -> int:
        return _STATES.index(self.record.state)


_Refuted = tuple[_Candidate, Refutation]
"""A candidate that is left out, and what keeps it out."""


@dataclass(slots=True)
class _Index:
    """Candidates by what they are looked up with, without those that a hard difference rules out."""

    by_workload: dict[str, list[_Candidate]] = field(default_factory=dict)
    by_cluster: dict[str, list[_Candidate]] = field(default_factory=dict)
    by_anchor: dict[str, list[_Candidate]] = field(default_factory=dict)
    ignored: list[_Candidate] = field(default_factory=list)
    refuted: dict[_Schedule, list[Refutation]] = field(default_factory=dict)

    def add(self, candidate: _Candidate) -> None:
        workload = candidate.workload
        if candidate.hard:
            self.ignored.append(candidate)
            return
        self.by_workload.setdefault(workload.key, []).append(candidate)
        self.by_cluster.setdefault(workload.cluster, []).append(candidate)
        self.by_anchor.setdefault(workload.anchor, []).append(candidate)


def grade_workloads(
    workloads: Sequence[Workload],
    known: Known,
    environment: Environment,
    depths: Mapping[str, int],
    *,
    policy: StalenessPolicy = DEFAULT_POLICY,
    now_s: float = 0.0,
) -> list[Match]:
    """One match for each workload, in order.

    Args:
        depths: The `--trials` asked, by workload key; a workload that is not in it asks for none.
        policy: What a difference in version, and an age, mean.
        now_s: Unix seconds, from which ages count.
    """
    index = _index(known, environment, policy, now_s)
    return [_grade(workload, index, depths.get(workload.key, 0)) for workload in workloads]


def refuted_priors(
    workloads: Sequence[Workload], known: Known, environment: Environment, *, policy: StalenessPolicy = DEFAULT_POLICY
) -> list[list[tuple[TuningRecord, Refutation]]]:
    """The priors that are kept from each workload since they misled, in order, each with its newest refutation."""
    index = _index(known, environment, policy, 0.0)
    found = []
    for workload in workloads:
        siblings = [c for c in index.by_cluster.get(workload.cluster, ()) if c.workload.key != workload.key]
        cousins = [c for c in index.by_anchor.get(workload.anchor, ()) if c.workload.cluster != workload.cluster]
        refuted = _without_refuted(workload, siblings, Grade.CLUSTER, index)[1]
        refuted += _without_refuted(workload, cousins, Grade.ANCHOR, index)[1]
        found.append([(candidate.record, refutation) for candidate, refutation in refuted])
    return found


def _index(known: Known, environment: Environment, policy: StalenessPolicy, now_s: float) -> _Index:
    differences = {key: compare(then, environment, policy) for key, then in known.environments.items()}
    index = _Index(refuted=_refuted_here(known, differences))
    best: dict[tuple[str, str], float] = {}
    for record in known.records:
        place = (record.workload_key, record.environment_key)
        best[place] = min(best.get(place, math.inf), record.median_s)
    for record in known.records:
        found = differences[record.environment_key]
        index.add(
            _Candidate(
                record=record,
                workload=known.workloads[record.workload_key],
                hard=tuple(d for d in found if d.field_class is FieldClass.HARD),
                soft=tuple(d for d in found if d.field_class is FieldClass.SOFT),
                doubts=doubts(record, policy, now_s),
                relative=record.median_s / best[record.workload_key, record.environment_key],
            )
        )
    return index


def _refuted_here(known: Known, differences: Mapping[str, Sequence[Difference]]) -> dict[_Schedule, list[Refutation]]:
    """The refutations that count in this environment, by the schedule that misled: several runs may have found the same one.

    A workload is not misled by a record of its own.
    """
    records = {record.id: record for record in known.records} if known.refutations else {}
    refuted: dict[_Schedule, list[Refutation]] = {}
    for refutation in known.refutations:
        record = records.get(refutation.record_id)
        hard = any(d.field_class is FieldClass.HARD for d in differences[refutation.environment_key])
        if record is not None and record.workload_key != refutation.workload_key and not hard:
            refuted.setdefault(_schedule(record), []).append(refutation)
    return refuted


def _grade(workload: Workload, index: _Index, asked: int) -> Match:
    own = sorted(index.by_workload.get(workload.key, ()), key=_own_order)
    siblings = [c for c in index.by_cluster.get(workload.cluster, ()) if c.workload.key != workload.key]
    exact = [c for c in own if c.record.state is RecordState.PUBLISHED and not c.n_soft and c.record.depth >= asked]
    if exact:
        record = min(exact, key=lambda c: (c.record.median_s, c.record.id)).record
        return Match(workload, Grade.EXACT, record, (), _exact_reason(record, asked))
    if own:
        usable, refuted = _without_refuted(workload, siblings, Grade.CLUSTER, index)
        priors = _own_priors(workload, own)
        priors += _other_priors(workload, usable, Grade.CLUSTER, MAX_PRIORS - len(priors))
        return Match(workload, Grade.STALE, None, priors, f"{_stale_reason(own, asked)}{_refuted_reason(refuted)}")
    return _grade_unknown(workload, index, siblings)


def _grade_unknown(workload: Workload, index: _Index, siblings: list[_Candidate]) -> Match:
    """The match of a workload without a usable record of its own."""
    cousins = [c for c in index.by_anchor.get(workload.anchor, ()) if c.workload.cluster != workload.cluster]
    absent, ignored = _absent_reason(siblings, cousins), _ignored_reason(workload, index.ignored)
    refuted: list[_Refuted] = []
    kinds = ((Grade.CLUSTER, siblings, "sibling"), (Grade.ANCHOR, cousins, "workload with its main block"))
    for grade, candidates, word in kinds:
        usable, misled = _without_refuted(workload, candidates, grade, index)
        refuted += misled
        if usable:
            reason = f"{absent}; {_nearest(workload, usable, grade, word)}{_refuted_reason(refuted)}{ignored}"
            return Match(workload, grade, None, _other_priors(workload, usable, grade, MAX_PRIORS), reason)
    return Match(workload, Grade.COLD, None, (), f"{absent}{_refuted_reason(refuted)}{ignored}")


def _without_refuted(
    workload: Workload, candidates: Iterable[_Candidate], grade: Grade, index: _Index
) -> tuple[list[_Candidate], list[_Refuted]]:
    """The candidates that may be diffused from, and those that are refuted, each with its newest refutation."""
    usable: list[_Candidate] = []
    refuted: list[_Refuted] = []
    for candidate in candidates:
        holding = [r for r in index.refuted.get(_schedule(candidate.record), ()) if _holds(r, workload, candidate, grade)]
        if holding:
            refuted.append((candidate, max(holding, key=_age)))
        else:
            usable.append(candidate)
    return usable, refuted


def _holds(refutation: Refutation, workload: Workload, candidate: _Candidate, grade: Grade) -> bool:
    """Whether it keeps the candidate from the workload: the misled one, or one of its cluster that is at least as far."""
    if refutation.workload_key == workload.key:
        return True
    return refutation.cluster == workload.cluster and _distance(workload, candidate.workload, grade) >= refutation.distance


def _age(refutation: Refutation) -> tuple[float, str]:
    """What orders refutations, oldest first."""
    return refutation.created_at, refutation.run_id


def _own_order(candidate: _Candidate) -> tuple[int, int, int, float, str]:
    """Nearest to being exact first."""
    record = candidate.record
    return candidate.n_soft, -candidate.state_rank, -record.depth, candidate.relative, record.id


def _own_priors(workload: Workload, own: Iterable[_Candidate]) -> tuple[Prior, ...]:
    chosen = sorted(_distinct(own), key=lambda c: (c.n_soft, -c.state_rank, c.relative, c.record.id))
    return tuple(Prior(c.record, workload, 0.0, Grade.STALE) for c in chosen[:MAX_OWN_PRIORS])


def _other_priors(workload: Workload, candidates: Iterable[_Candidate], grade: Grade, limit: int) -> tuple[Prior, ...]:
    """Priors of the nearest workloads: several of the nearest, fewer of the others."""
    by_workload: dict[str, list[_Candidate]] = {}
    for candidate in sorted(candidates, key=lambda c: (c.relative, c.n_soft, -c.state_rank, c.record.id)):
        by_workload.setdefault(candidate.workload.key, []).append(candidate)
    distances = {key: _distance(workload, group[0].workload, grade) for key, group in by_workload.items()}
    nearest = sorted(by_workload, key=lambda key: (distances[key], key))[:_MAX_WORKLOADS]
    chosen = [
        Prior(c.record, c.workload, distances[key], grade)
        for key, quota in zip(nearest, _QUOTAS[len(nearest)], strict=True)
        for c in _distinct(by_workload[key])[:quota]
    ]
    return tuple(chosen[:limit])


def _distinct(candidates: Iterable[_Candidate]) -> list[_Candidate]:
    """The first candidate of each schedule: runs may have found the same one."""
    first: dict[_Schedule, _Candidate] = {}
    for candidate in candidates:
        first.setdefault(_schedule(candidate.record), candidate)
    return list(first.values())


def _schedule(record: TuningRecord) -> _Schedule:
    return record.workload_key, record.sketch, record.decisions


def _exact_reason(record: TuningRecord, asked: int) -> str:
    return f"published at {record.median_s * 1e3:.4g} ms, {_searched(record)}, {asked} asked"


def _stale_reason(own: Sequence[_Candidate], asked: int) -> str:
    nearest = own[0]
    reasons = [*(difference.describe() for difference in nearest.soft), *nearest.doubts]
    if nearest.record.state is not RecordState.PUBLISHED:
        reasons.append(f"only {nearest.record.state}, not published")
    if nearest.record.depth < asked:
        reasons.append(f"{_searched(nearest.record)}, {asked} asked")
    return "; ".join(reasons)


def _searched(record: TuningRecord) -> str:
    if record.depth:
        return f"searched for {record.depth} trials"
    return f"search was cut short after {record.trials} trials"


def _distance(workload: Workload, other: Workload, grade: Grade) -> float:
    """Between the whole workloads in a cluster, between the main blocks where only those are the same."""
    return workload.anchor_distance(other) if grade is Grade.ANCHOR else workload.distance(other)


def _nearest(workload: Workload, candidates: Sequence[_Candidate], grade: Grade, word: str) -> str:
    others = {c.workload.key: c.workload for c in candidates}
    distance = min(_distance(workload, other, grade) for other in others.values())
    at = f"at distance {distance:.1f}" if math.isfinite(distance) else "with another number of loops"
    noun = word if len(others) == 1 else word.replace("sibling", "siblings").replace("workload", "workloads")
    return f"{len(others)} {noun} known, nearest {at}"


def _absent_reason(siblings: Sequence[_Candidate], cousins: Sequence[_Candidate]) -> str:
    """What is not known at all; what is known but refuted is not absent."""
    if siblings:
        return "no record of this workload"
    if cousins:
        return "no record of this workload or a sibling"
    return "no record of this workload, a sibling or its main block"


def _refuted_reason(refuted: Sequence[_Refuted]) -> str:
    """How many priors were left out because they misled, and which run noticed it last."""
    if not refuted:
        return ""
    n_priors = len({_schedule(candidate.record) for candidate, _ in refuted})
    newest = max((refutation for _, refutation in refuted), key=_age).run_id
    n_others = len({refutation.run_id for _, refutation in refuted}) - 1
    others = f" and {n_others} other{'s' if n_others > 1 else ''}" if n_others else ""
    return f"; {n_priors} prior{'s' if n_priors > 1 else ''} refuted by run {newest[:_SHOWN_RUN_LENGTH]}{others}"


def _ignored_reason(workload: Workload, ignored: Sequence[_Candidate]) -> str:
    """Why records that would have helped were left out: of the nearest kind, the first one's hard differences."""
    for name in ("key", "cluster", "anchor"):
        found = [c for c in ignored if getattr(c.workload, name) == getattr(workload, name)]
        if found:
            count = "1 record" if len(found) == 1 else f"{len(found)} records"
            return f"; {count} ignored: {', '.join(d.describe() for d in found[0].hard)}"
    return ""
