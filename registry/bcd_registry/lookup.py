"""The graded lookup: what may be reused, what may be diffused from, and why it was not better. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .candidates import MAX_WORKLOADS, Candidate, Index, Refuted, Schedule, age
from .model import Environment, Grade, Match, Prior, RecordState, Refutation, TuningRecord, Workload
from .nearest import distance as _distance
from .staleness import DEFAULT_POLICY, StalenessPolicy

MAX_PRIORS = 6
"""Most priors of one match."""

MAX_OWN_PRIORS = 3
"""Most of them that are the workload's own records."""

_QUOTAS = ((), (6,), (4, 2), (3, 2, 1), (3, 1, 1, 1))
_SHOWN_RUN_LENGTH = 8


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
    return [grade_workload(workload, index, depths.get(workload.key, 0)) for workload in workloads]


def refuted_priors(
    workloads: Sequence[Workload], known: Known, environment: Environment, *, policy: StalenessPolicy = DEFAULT_POLICY
) -> list[list[tuple[TuningRecord, Refutation]]]:
    """The priors that are kept from each workload since they misled, in order, each with its newest refutation."""
    index = _index(known, environment, policy, 0.0)
    found = []
    for workload in workloads:
        refuted = [
            pair
            for grade in (Grade.CLUSTER, Grade.ANCHOR)
            for pair in index.without_refuted(workload, index.relatives(workload, grade), grade)[1]
        ]
        found.append([(candidate.record, refutation) for candidate, refutation in refuted])
    return found


def _index(known: Known, environment: Environment, policy: StalenessPolicy, now_s: float) -> Index:
    """All of it, read."""
    index = Index(environment, policy, now_s)
    index.add_environments(known.environments)
    index.add_refutations(known.refutations)
    by_workload: dict[str, dict[str, TuningRecord]] = {}
    for record in known.records:
        by_workload.setdefault(record.workload_key, {})[record.id] = record
    for key, records in by_workload.items():
        index.add_read(known.workloads[key], records)
    return index


def is_exact(candidate: Candidate, asked: int) -> bool:
    """Whether it may be served as the result of a search of so many trials."""
    record = candidate.record
    return record.state is RecordState.PUBLISHED and not candidate.n_soft and record.depth >= asked


def grade_workload(workload: Workload, index: Index, asked: int) -> Match:
    """The match of one workload.

    Args:
        index: What is known, see there what it must have read.
        asked: The `--trials` asked.
    """
    own = sorted(index.own(workload), key=_own_order)
    exact = [candidate for candidate in own if is_exact(candidate, asked)]
    if exact:
        record = min(exact, key=lambda c: (c.record.median_s, c.id)).record
        return Match(workload, Grade.EXACT, record, (), _exact_reason(record, asked))
    if own:
        siblings = index.relatives(workload, Grade.CLUSTER)
        usable, refuted = index.without_refuted(workload, siblings, Grade.CLUSTER)
        priors = _own_priors(workload, own)
        priors += _other_priors(workload, usable, Grade.CLUSTER, MAX_PRIORS - len(priors))
        return Match(workload, Grade.STALE, None, priors, f"{_stale_reason(own, asked)}{_refuted_reason(refuted)}")
    return _grade_unknown(workload, index)


def _grade_unknown(workload: Workload, index: Index) -> Match:
    """The match of a workload without a usable record of its own."""
    siblings, cousins = index.relatives(workload, Grade.CLUSTER), index.relatives(workload, Grade.ANCHOR)
    absent = _absent_reason(siblings, cousins)
    refuted: list[Refuted] = []
    kinds = ((Grade.CLUSTER, siblings, "sibling"), (Grade.ANCHOR, cousins, "workload with its main block"))
    for found, candidates, word in kinds:
        usable, misled = index.without_refuted(workload, candidates, found)
        refuted += misled
        if usable:
            nearest = _nearest(workload, usable, len(index.unread(workload, found)), found, word)
            reason = f"{absent}; {nearest}{_refuted_reason(refuted)}{_ignored_reason(workload, index, found)}"
            return Match(workload, found, None, _other_priors(workload, usable, found, MAX_PRIORS), reason)
    reason = f"{absent}{_refuted_reason(refuted)}{_ignored_reason(workload, index, Grade.ANCHOR)}"
    return Match(workload, Grade.COLD, None, (), reason)


def _own_order(candidate: Candidate) -> tuple[int, int, int, int, float, str]:
    """Nearest to being exact first."""
    record = candidate.record
    n_soft, n_doubts = len(candidate.soft), len(candidate.doubts)
    return n_soft, -candidate.state_rank, n_doubts, -record.depth, candidate.relative, candidate.id


def _own_priors(workload: Workload, own: Iterable[Candidate]) -> tuple[Prior, ...]:
    chosen = sorted(_distinct(own), key=lambda c: (len(c.soft), -c.state_rank, len(c.doubts), c.relative, c.id))
    return tuple(Prior(c.record, workload, 0.0, Grade.STALE) for c in chosen[:MAX_OWN_PRIORS])


def _other_priors(workload: Workload, candidates: Iterable[Candidate], grade: Grade, limit: int) -> tuple[Prior, ...]:
    """Priors of the nearest workloads: several of the nearest, fewer of the others."""
    by_workload: dict[str, list[Candidate]] = {}
    for candidate in sorted(candidates, key=lambda c: (c.relative, c.n_soft, -c.state_rank, c.id)):
        by_workload.setdefault(candidate.workload.key, []).append(candidate)
    distances = {key: _distance(workload, group[0].workload, grade) for key, group in by_workload.items()}
    nearest = sorted(by_workload, key=lambda key: (distances[key], key))[:MAX_WORKLOADS]
    chosen = [
        Prior(c.record, c.workload, distances[key], grade)
        for key, quota in zip(nearest, _QUOTAS[len(nearest)], strict=True)
        for c in _distinct(by_workload[key])[:quota]
    ]
    return tuple(chosen[:limit])


def _distinct(candidates: Iterable[Candidate]) -> list[Candidate]:
    """The first candidate of each schedule: runs may have found the same one."""
    first: dict[Schedule, Candidate] = {}
    for candidate in candidates:
        first.setdefault(candidate.schedule, candidate)
    return list(first.values())


def _exact_reason(record: TuningRecord, asked: int) -> str:
    return f"published at {record.median_s * 1e3:.4g} ms, {_searched(record)}, {asked} asked"


def _stale_reason(own: Sequence[Candidate], asked: int) -> str:
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


def _nearest(workload: Workload, candidates: Sequence[Candidate], n_unread: int, grade: Grade, word: str) -> str:
    """How many may be diffused from; the nearest are among the candidates, whatever is unread."""
    others = {c.workload.key: c.workload for c in candidates}
    distance = min(_distance(workload, other, grade) for other in others.values())
    at = f"at distance {distance:.1f}" if math.isfinite(distance) else "with another number of loops"
    n_others = len(others) + n_unread
    noun = word if n_others == 1 else word.replace("sibling", "siblings").replace("workload", "workloads")
    return f"{n_others} {noun} known, nearest {at}"


def _absent_reason(siblings: Sequence[Candidate], cousins: Sequence[Candidate]) -> str:
    """What is not known at all; what is known but refuted is not absent."""
    if siblings:
        return "no record of this workload"
    if cousins:
        return "no record of this workload or a sibling"
    return "no record of this workload, a sibling or its main block"


def _refuted_reason(refuted: Sequence[Refuted]) -> str:
    """How many priors were left out because they misled, and which run noticed it last."""
    if not refuted:
        return ""
    n_priors = len({candidate.schedule for candidate, _ in refuted})
    newest = max((refutation for _, refutation in refuted), key=age).run_id
    n_others = len({refutation.run_id for _, refutation in refuted}) - 1
    others = f" and {n_others} other{'s' if n_others > 1 else ''}" if n_others else ""
    return f"; {n_priors} prior{'s' if n_priors > 1 else ''} refuted by run {newest[:_SHOWN_RUN_LENGTH]}{others}"


def _ignored_reason(workload: Workload, index: Index, grade: Grade) -> str:
    """Why records that would have helped were left out: of the nearest kind, the first one's hard differences.

    Args:
        grade: What was found instead: records of farther kinds would not have helped.
    """
    for kind in (Grade.STALE, Grade.CLUSTER) if grade is Grade.CLUSTER else (Grade.STALE, Grade.CLUSTER, Grade.ANCHOR):
        found = index.ignored(workload, kind)
        if found:
            n_records = sum(found.values())
            count = "1 record" if n_records == 1 else f"{n_records} records"
            _, environment_key = min(found)
            return f"; {count} ignored: {', '.join(d.describe() for d in index.hard[environment_key])}"
    return ""
