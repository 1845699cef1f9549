"""The graded lookup: what may be reused, what may be diffused from, and why it was not better. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .model import Decision, Environment, Grade, Match, Prior, RecordState, Refutation, Relative, TuningRecord, Workload
from .nearest import Neighbours
from .nearest import distance as _distance
from .staleness import DEFAULT_POLICY, Difference, FieldClass, StalenessPolicy, compare, doubts

MAX_PRIORS = 6
"""Most priors of one match."""

MAX_OWN_PRIORS = 3
"""Most of them that are the workload's own records."""

MAX_RECORDS = 8
"""Most records of one workload and environment that are known, the best ones."""

_QUOTAS = ((), (6,), (4, 2), (3, 2, 1), (3, 1, 1, 1))
_MAX_WORKLOADS = len(_QUOTAS) - 1
_STATE_RANKS = {state: rank for rank, state in enumerate(RecordState)}
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
        unread: Workloads with records of which none is in `records`. None of them is looked up itself, and nothing of them was
            refuted. Once those that `wanted_workloads` names are read, the others are too far to matter, and only counted.
    """

    records: Sequence[TuningRecord]
    workloads: Mapping[str, Workload]
    environments: Mapping[str, Environment]
    refutations: Sequence[Refutation] = ()
    unread: Sequence[Relative] = ()


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A record with all that decides its rank.

    Attributes:
        id: The record's, which costs a digest each time that it is asked for.
        doubts: What makes it a prior only in any environment: its age and its drift.
        relative: Its median over the best median of its workload in its environment, at least 1.
    """

    id: str
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
        return _STATE_RANKS[self.record.state]


_Refuted = tuple[_Candidate, Refutation]
"""A candidate that is left out, and what keeps it out."""

_Ignored = tuple[str, str, int]
"""Workload and environment of records that a hard difference rules out, and how many they are."""


@dataclass(slots=True)
class _Group:
    """Workloads of one cluster, or with one anchor, without those that a hard difference rules out."""

    candidates: list[_Candidate] = field(default_factory=list)
    unread: list[Workload] = field(default_factory=list)
    neighbours: Neighbours | None = None


@dataclass(slots=True)
class _Index:
    """Candidates by what they are looked up with, and what keeps others out."""

    hard: Mapping[str, tuple[Difference, ...]]
    by_workload: dict[str, list[_Candidate]] = field(default_factory=dict)
    by_cluster: dict[str, _Group] = field(default_factory=dict)
    by_anchor: dict[str, _Group] = field(default_factory=dict)
    ignored: dict[str, list[_Ignored]] = field(default_factory=dict)
    refuted: dict[_Schedule, list[Refutation]] = field(default_factory=dict)
    misleading: set[str] = field(default_factory=set)

    def add(self, candidate: _Candidate) -> None:
        workload = candidate.workload
        if candidate.hard:
            self._ignore(workload, candidate.record.environment_key, 1)
            return
        self.by_workload.setdefault(workload.key, []).append(candidate)
        self.by_cluster.setdefault(workload.cluster, _Group()).candidates.append(candidate)
        self.by_anchor.setdefault(workload.anchor, _Group()).candidates.append(candidate)

    def add_unread(self, relative: Relative) -> None:
        workload = relative.workload
        known = [key for key in relative.n_records if key in self.hard]
        for key in known:
            if self.hard[key]:
                self._ignore(workload, key, min(relative.n_records[key], MAX_RECORDS))
        if any(not self.hard[key] for key in known):
            self.by_cluster.setdefault(workload.cluster, _Group()).unread.append(workload)
            self.by_anchor.setdefault(workload.anchor, _Group()).unread.append(workload)

    def siblings(self, workload: Workload) -> list[_Candidate]:
        """Of other workloads of its cluster."""
        return [c for c in self._group(workload, Grade.CLUSTER).candidates if c.workload.key != workload.key]

    def cousins(self, workload: Workload) -> list[_Candidate]:
        """Of workloads of other clusters with its anchor."""
        return [c for c in self._group(workload, Grade.ANCHOR).candidates if c.workload.cluster != workload.cluster]

    def unread(self, workload: Workload, grade: Grade) -> list[Workload]:
        """Its siblings or cousins of which no record is read."""
        unread = self._group(workload, grade).unread
        return [other for other in unread if other.cluster != workload.cluster] if grade is Grade.ANCHOR else unread

    def neighbours(self, workload: Workload, grade: Grade) -> Neighbours:
        """All of its cluster, or with its anchor."""
        group = self._group(workload, grade)
        if group.neighbours is None:
            read = {c.workload.key: c.workload for c in group.candidates}
            group.neighbours = Neighbours([*read.values(), *group.unread], grade)
        return group.neighbours

    def _group(self, workload: Workload, grade: Grade) -> _Group:
        found = self.by_anchor.get(workload.anchor) if grade is Grade.ANCHOR else self.by_cluster.get(workload.cluster)
        return found or _Group()

    def _ignore(self, workload: Workload, environment_key: str, n_records: int) -> None:
        for name in (workload.key, workload.cluster, workload.anchor):
            self.ignored.setdefault(name, []).append((workload.key, environment_key, n_records))


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


def wanted_workloads(
    workloads: Sequence[Workload],
    known: Known,
    environment: Environment,
    depths: Mapping[str, int],
    *,
    policy: StalenessPolicy = DEFAULT_POLICY,
    now_s: float = 0.0,
) -> list[str]:
    """Keys of unread workloads whose records must be known for the matches to be those that all records would give.

    They are the nearest that each workload may be diffused from: its siblings, or those with its anchor when it has none; for
    one with an exact record there are none.
    """
    if not known.unread:
        return []
    index = _index(known, environment, policy, now_s)
    wanted = (_wanted(workload, index, depths.get(workload.key, 0)) for workload in workloads)
    return list(dict.fromkeys(itertools.chain.from_iterable(wanted)))


def _wanted(workload: Workload, index: _Index, asked: int) -> list[str]:
    own = index.by_workload.get(workload.key, ())
    if any(_is_exact(candidate, asked) for candidate in own):
        return []
    for grade in (Grade.CLUSTER,) if own else (Grade.CLUSTER, Grade.ANCHOR):
        candidates = index.cousins(workload) if grade is Grade.ANCHOR else index.siblings(workload)
        unread = {other.key for other in index.unread(workload, grade)}
        usable = unread | {c.workload.key for c in _without_refuted(workload, candidates, grade, index)[0]}
        if usable:
            ordered = (other.key for other in index.neighbours(workload, grade).by_distance(workload))
            nearest = itertools.islice((key for key in ordered if key in usable), _MAX_WORKLOADS)
            return [key for key in nearest if key in unread]
    return []


def refuted_priors(
    workloads: Sequence[Workload], known: Known, environment: Environment, *, policy: StalenessPolicy = DEFAULT_POLICY
) -> list[list[tuple[TuningRecord, Refutation]]]:
    """The priors that are kept from each workload since they misled, in order, each with its newest refutation."""
    index = _index(known, environment, policy, 0.0)
    found = []
    for workload in workloads:
        refuted = _without_refuted(workload, index.siblings(workload), Grade.CLUSTER, index)[1]
        refuted += _without_refuted(workload, index.cousins(workload), Grade.ANCHOR, index)[1]
        found.append([(candidate.record, refutation) for candidate, refutation in refuted])
    return found


def _index(known: Known, environment: Environment, policy: StalenessPolicy, now_s: float) -> _Index:
    differences = {key: compare(then, environment, policy) for key, then in known.environments.items()}
    soft = {key: tuple(d for d in found if d.field_class is FieldClass.SOFT) for key, found in differences.items()}
    hard = {key: tuple(d for d in found if d.field_class is FieldClass.HARD) for key, found in differences.items()}
    index = _Index(hard)
    medians = [record.median_s for record in known.records]
    best: dict[tuple[str, str], float] = {}
    for record, median_s in zip(known.records, medians, strict=True):
        place = (record.workload_key, record.environment_key)
        best[place] = min(best.get(place, math.inf), median_s)
    by_id: dict[str, TuningRecord] = {}
    for record, median_s in zip(known.records, medians, strict=True):
        candidate = _Candidate(
            id=record.id,
            record=record,
            workload=known.workloads[record.workload_key],
            hard=hard[record.environment_key],
            soft=soft[record.environment_key],
            doubts=doubts(record, policy, now_s),
            relative=median_s / best[record.workload_key, record.environment_key],
        )
        by_id[candidate.id] = record
        index.add(candidate)
    for relative in known.unread:
        index.add_unread(relative)
    _add_refuted(index, known.refutations, by_id)
    return index


def _add_refuted(index: _Index, refutations: Iterable[Refutation], records: Mapping[str, TuningRecord]) -> None:
    """The refutations that count in this environment, by the schedule that misled: several runs may have found the same one.

    A workload is not misled by a record of its own.
    """
    for refutation in refutations:
        record = records.get(refutation.record_id)
        if record is not None and record.workload_key != refutation.workload_key and not index.hard[refutation.environment_key]:
            index.refuted.setdefault(_schedule(record), []).append(refutation)
            index.misleading.add(record.workload_key)


def _grade(workload: Workload, index: _Index, asked: int) -> Match:
    own = sorted(index.by_workload.get(workload.key, ()), key=_own_order)
    exact = [candidate for candidate in own if _is_exact(candidate, asked)]
    if exact:
        record = min(exact, key=lambda c: (c.record.median_s, c.id)).record
        return Match(workload, Grade.EXACT, record, (), _exact_reason(record, asked))
    siblings = index.siblings(workload)
    if own:
        usable, refuted = _without_refuted(workload, siblings, Grade.CLUSTER, index)
        priors = _own_priors(workload, own)
        priors += _other_priors(workload, usable, Grade.CLUSTER, MAX_PRIORS - len(priors))
        return Match(workload, Grade.STALE, None, priors, f"{_stale_reason(own, asked)}{_refuted_reason(refuted)}")
    return _grade_unknown(workload, index, siblings)


def _is_exact(candidate: _Candidate, asked: int) -> bool:
    record = candidate.record
    return record.state is RecordState.PUBLISHED and not candidate.n_soft and record.depth >= asked


def _grade_unknown(workload: Workload, index: _Index, siblings: list[_Candidate]) -> Match:
    """The match of a workload without a usable record of its own."""
    cousins = index.cousins(workload)
    absent, ignored = _absent_reason(siblings, cousins), _ignored_reason(workload, index)
    refuted: list[_Refuted] = []
    kinds = ((Grade.CLUSTER, siblings, "sibling"), (Grade.ANCHOR, cousins, "workload with its main block"))
    for grade, candidates, word in kinds:
        usable, misled = _without_refuted(workload, candidates, grade, index)
        refuted += misled
        if usable:
            nearest = _nearest(workload, usable, len(index.unread(workload, grade)), grade, word)
            reason = f"{absent}; {nearest}{_refuted_reason(refuted)}{ignored}"
            return Match(workload, grade, None, _other_priors(workload, usable, grade, MAX_PRIORS), reason)
    return Match(workload, Grade.COLD, None, (), f"{absent}{_refuted_reason(refuted)}{ignored}")


def _without_refuted(
    workload: Workload, candidates: Sequence[_Candidate], grade: Grade, index: _Index
) -> tuple[Sequence[_Candidate], list[_Refuted]]:
    """The candidates that may be diffused from, and those that are refuted, each with its newest refutation."""
    if not index.misleading:
        return candidates, []
    usable: list[_Candidate] = []
    refuted: list[_Refuted] = []
    for candidate in candidates:
        found = index.refuted.get(_schedule(candidate.record), ()) if candidate.workload.key in index.misleading else ()
        holding = [r for r in found if _holds(r, workload, candidate, grade)]
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
    return candidate.n_soft, -candidate.state_rank, -record.depth, candidate.relative, candidate.id


def _own_priors(workload: Workload, own: Iterable[_Candidate]) -> tuple[Prior, ...]:
    chosen = sorted(_distinct(own), key=lambda c: (c.n_soft, -c.state_rank, c.relative, c.id))
    return tuple(Prior(c.record, workload, 0.0, Grade.STALE) for c in chosen[:MAX_OWN_PRIORS])


def _other_priors(workload: Workload, candidates: Iterable[_Candidate], grade: Grade, limit: int) -> tuple[Prior, ...]:
    """Priors of the nearest workloads: several of the nearest, fewer of the others."""
    by_workload: dict[str, list[_Candidate]] = {}
    for candidate in sorted(candidates, key=lambda c: (c.relative, c.n_soft, -c.state_rank, c.id)):
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


def _nearest(workload: Workload, candidates: Sequence[_Candidate], n_unread: int, grade: Grade, word: str) -> str:
    """How many may be diffused from; the nearest are among the candidates, whatever is unread."""
    others = {c.workload.key: c.workload for c in candidates}
    distance = min(_distance(workload, other, grade) for other in others.values())
    at = f"at distance {distance:.1f}" if math.isfinite(distance) else "with another number of loops"
    n_others = len(others) + n_unread
    noun = word if n_others == 1 else word.replace("sibling", "siblings").replace("workload", "workloads")
    return f"{n_others} {noun} known, nearest {at}"


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


def _ignored_reason(workload: Workload, index: _Index) -> str:
    """Why records that would have helped were left out: of the nearest kind, the first one's hard differences."""
    for name in (workload.key, workload.cluster, workload.anchor):
        found = index.ignored.get(name)
        if found:
            n_records = sum(n for _, _, n in found)
            count = "1 record" if n_records == 1 else f"{n_records} records"
            return f"; {count} ignored: {', '.join(d.describe() for d in index.hard[min(found)[1]])}"
    return ""
