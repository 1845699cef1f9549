"""Why each workload is not answered better: the closest entry, every field that differs, and what was left out. Pure."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .comparison import compare_workloads
from .descriptions import likeness, outline
from .differences import WorkloadDifference, in_words
from .lookup import Known, refuted_priors
from .model import Environment, Event, Grade, Json, Match, RecordState, Refutation, TuningRecord, Workload
from .staleness import DEFAULT_POLICY, Difference, FieldClass, StalenessPolicy, compare, doubts

_STATES = list(RecordState)
_SHOWN_LENGTH = 12


class Relation(enum.StrEnum):
    """What the closest entry has in common with a workload, the closest first."""

    WORKLOAD = "workload"
    CLUSTER = "cluster"
    ANCHOR = "anchor"
    OP = "op"


class Cause(enum.StrEnum):
    """Why a record is left out of a lookup, what is easiest to mend first."""

    ENVIRONMENT = "environment"
    REFUTED = "refuted"
    INVALIDATED = "invalidated"
    DAMAGED = "damaged"
    QUARANTINED = "quarantined"


@dataclass(frozen=True, slots=True)
class RecordGap:
    """What a record itself lacks of being served as it is.

    Attributes:
        field: `state`, `depth`, `age`, `drift`, or a `Cause`.
        there: What the record has.
        here: What is asked; None where that needs no value.
        text: Both for people, one line.
    """

    field: str
    there: Json
    here: Json
    text: str


@dataclass(frozen=True, slots=True)
class Closest:
    """The entry that is closest to a workload, and every field that differs.

    Attributes:
        record: Its best record; None for OP, of which only the workload is looked at.
        distance: Between the extents, octaves; infinite where they cannot be compared.
        gaps: What its record lacks.
        environment: Every field of its environment that is another now, notes included, hard ones first.
        differences: Between its workload and this one, the most telling first.
    """

    relation: Relation
    workload: Workload
    record: TuningRecord | None
    distance: float
    gaps: tuple[RecordGap, ...] = ()
    environment: tuple[Difference, ...] = ()
    differences: tuple[WorkloadDifference, ...] = ()

    def phrases(self, *, brief: bool = True) -> list[str]:
        """What differs, in words, the most telling first.

        Args:
            brief: Leave out notes and what follows from something else, and of another workload's record its state and depth.
        """
        own = self.relation is Relation.WORKLOAD
        gaps = [gap.text for gap in self.gaps if own or not brief or gap.field in list(Cause)]
        fields = [d.describe() for d in self.environment if not (brief and d.field_class is FieldClass.NOTE)]
        return [*in_words(self.differences, brief=brief), *dict.fromkeys([*gaps, *fields])]

    def as_json(self) -> dict[str, Json]:
        """Plain JSON: what it is, and one list of all that differs."""
        return {
            "relation": self.relation,
            "workload_key": self.workload.key,
            "op": self.workload.op,
            "extents": list(self.workload.extents),
            "record": None if self.record is None else self.record.id,
            "distance": self.distance if math.isfinite(self.distance) else None,
            "differences": [
                *(_difference("record", gap.field, "", gap.there, gap.here, gap.text) for gap in self.gaps),
                *environment_as_json(self.environment),
                *workloads_as_json(self.differences),
            ],
        }


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Records that a lookup leaves out for one reason."""

    cause: Cause
    relation: Relation
    reason: str
    records: tuple[str, ...]

    def describe(self) -> str:
        """How many, of what and why, for people."""
        count = "1 record" if len(self.records) == 1 else f"{len(self.records)} records"
        whose = {Relation.WORKLOAD: "its own", Relation.CLUSTER: "its cluster", Relation.ANCHOR: "its main block"}
        prefix = "" if self.reason.startswith(str(self.cause)) else f"{self.cause}: "
        return f"{count} of {whose.get(self.relation, 'its operator')}, {prefix}{self.reason}"


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a lookup says of a workload, and why it does not say better.

    Attributes:
        closest: None for EXACT, and where nothing like it is known.
        left_out: Records of the workload, its cluster or its main block that no lookup of it uses; empty for EXACT.
    """

    workload: Workload
    grade: Grade
    reason: str
    record: TuningRecord | None
    closest: Closest | None
    left_out: tuple[LeftOut, ...]

    def as_json(self) -> dict[str, Json]:
        """Plain JSON."""
        return {
            "workload_key": self.workload.key,
            "op": self.workload.op,
            "extents": list(self.workload.extents),
            "grade": self.grade,
            "reason": self.reason,
            "record": None if self.record is None else self.record.id,
            "closest": None if self.closest is None else self.closest.as_json(),
            "left_out": [
                {"cause": item.cause, "relation": item.relation, "reason": item.reason, "records": list(item.records)}
                for item in self.left_out
            ],
        }


@dataclass(frozen=True, slots=True)
class Evidence:
    """What an explanation is made from.

    Attributes:
        known: What the lookup graded from; its workloads and environments are those of `left_out` as well.
        left_out: Quarantined and invalidated records.
        events: What took records back, by id.
        alike: Workloads with a usable record whose operator is that of one without relatives.
    """

    known: Known
    left_out: Sequence[TuningRecord] = ()
    events: Mapping[str, Event] = field(default_factory=dict)
    alike: Sequence[Workload] = ()


def explain(
    matches: Sequence[Match],
    evidence: Evidence,
    environment: Environment,
    depths: Mapping[str, int],
    *,
    policy: StalenessPolicy = DEFAULT_POLICY,
    now_s: float = 0.0,
) -> list[Explanation]:
    """One explanation for each match, in order.

    Args:
        matches: What a lookup in the environment answered.
        depths: The `--trials` asked, by workload key.
        policy: The lookup's.
        now_s: Unix seconds, from which ages count.
    """
    refuted = refuted_priors([match.workload for match in matches], evidence.known, environment, policy=policy)
    entries = _entries(evidence, environment, policy, now_s)
    outlines = {workload.key: outline(workload) for workload in evidence.alike}
    explanations = []
    for match, misled in zip(matches, refuted, strict=True):
        asked, why = depths.get(match.workload.key, 0), {record.id: refutation for record, refutation in misled}
        explanations.append(_Case(match, asked, why, evidence, policy, now_s).explain(entries, outlines))
    return explanations


def environment_as_json(differences: Iterable[Difference]) -> list[dict[str, Json]]:
    """Fields of two environments that differ."""
    return [
        {**_difference("environment", d.field, "", d.then, d.now, d.describe()), "class": d.field_class} for d in differences
    ]


def workloads_as_json(differences: Iterable[WorkloadDifference]) -> list[dict[str, Json]]:
    """What differs between two workloads."""
    return [_difference("workload", d.aspect, d.where, d.there, d.here, d.describe()) for d in differences]


@dataclass(frozen=True, slots=True)
class _Entry:
    """A record that is related to one of the workloads.

    Attributes:
        fields: Its environment's that differ.
        doubts: Its age and its drift.
    """

    record: TuningRecord
    workload: Workload
    fields: tuple[Difference, ...]
    doubts: tuple[str, ...]

    @property
    def hard(self) -> list[Difference]:
        return [d for d in self.fields if d.field_class is FieldClass.HARD]

    @property
    def order(self) -> tuple[int, int, int, float, str]:
        """Nearest to being exact first."""
        record = self.record
        n_soft = sum(d.field_class is FieldClass.SOFT for d in self.fields) + len(self.doubts)
        return n_soft, -_STATES.index(record.state), -record.depth, record.median_s, record.id


@dataclass(frozen=True, slots=True)
class _Case:
    """One match, and what its explanation depends on.

    Attributes:
        refuted: The newest refutation of each record that must not be diffused into the workload, by the record's id.
    """

    match: Match
    asked: int
    refuted: Mapping[str, Refutation]
    evidence: Evidence
    policy: StalenessPolicy
    now_s: float

    def explain(self, entries: Sequence[_Entry], outlines: Mapping[str, Sequence[str]]) -> Explanation:
        match = self.match
        if match.grade is Grade.EXACT:
            return Explanation(match.workload, match.grade, match.reason, match.record, None, ())
        related = [(relation, entry) for entry in entries if (relation := relation_of(match.workload, entry.workload))]
        if related:
            closest: Closest | None = self._closest(*min(related, key=lambda item: self._rank(*item)))
        else:
            closest = self._alike(outlines)
        return Explanation(match.workload, match.grade, match.reason, None, closest, self._left_out(related))

    def _rank(self, relation: Relation, entry: _Entry) -> tuple[int, int, float, tuple[int, int, int, float, str]]:
        causes = self._causes(entry)
        obstacle = 1 + list(Cause).index(causes[0][0]) if causes else 0
        return list(Relation).index(relation), obstacle, _distance(self.match.workload, entry.workload, relation), entry.order

    def _closest(self, relation: Relation, entry: _Entry) -> Closest:
        return Closest(
            relation,
            entry.workload,
            entry.record,
            _distance(self.match.workload, entry.workload, relation),
            gaps=tuple(self._gaps(entry)),
            environment=entry.fields,
            differences=tuple(compare_workloads(entry.workload, self.match.workload)),
        )

    def _alike(self, outlines: Mapping[str, Sequence[str]]) -> Closest | None:
        """The workload of the same operator whose blocks are most alike."""
        workload = self.match.workload
        operator, own = operator_of(workload), outline(workload)

        def order(other: Workload) -> tuple[bool, float, float, str]:
            return other.op != workload.op, -likeness(own, outlines[other.key]), workload.distance(other), other.key

        found = min((w for w in self.evidence.alike if operator_of(w) == operator), key=order, default=None)
        if found is None:
            return None
        differences = tuple(compare_workloads(found, workload))
        return Closest(Relation.OP, found, None, workload.distance(found), differences=differences)

    def _left_out(self, related: Iterable[tuple[Relation, _Entry]]) -> tuple[LeftOut, ...]:
        grouped: dict[tuple[Relation, Cause, str], list[str]] = {}
        for relation, entry in related:
            for cause, reason in self._causes(entry)[:1]:
                grouped.setdefault((relation, cause, reason), []).append(entry.record.id)
        order = list(Relation), list(Cause)
        found = sorted(grouped, key=lambda key: (order[0].index(key[0]), order[1].index(key[1]), key[2]))
        return tuple(LeftOut(key[1], key[0], key[2], tuple(grouped[key])) for key in found)

    def _causes(self, entry: _Entry) -> list[tuple[Cause, str]]:
        """Why the workload's lookup leaves the record out, the hardest to mend first; empty when it does not."""
        record, refutation = entry.record, self.refuted.get(entry.record.id)
        found = []
        if record.state is RecordState.QUARANTINED:
            # what cannot be read is quarantined with the blob store's own message
            cause = Cause.DAMAGED if "blob" in record.reason else Cause.QUARANTINED
            found.append((cause, record.reason or "no reason is kept"))
        if record.invalidated:
            event = self.evidence.events.get(record.invalidated)
            found.append((Cause.INVALIDATED, event.reason if event else f"by event {record.invalidated[:_SHOWN_LENGTH]}"))
        if refutation is not None:
            found.append((Cause.REFUTED, _misled(refutation)))
        if entry.hard:
            found.append((Cause.ENVIRONMENT, ", ".join(d.describe() for d in entry.hard)))
        return found

    def _gaps(self, entry: _Entry) -> list[RecordGap]:
        record = entry.record
        found = [
            RecordGap(cause, reason, None, reason if reason.startswith(str(cause)) else f"{cause}: {reason}")
            for cause, reason in self._causes(entry)
            if cause is not Cause.ENVIRONMENT
        ]
        if record.state in (RecordState.MEASURED, RecordState.CHECKED):
            found.append(
                RecordGap("state", record.state, RecordState.PUBLISHED, f"only {record.state}, not {RecordState.PUBLISHED}")
            )
        if record.depth < self.asked:
            searched = f"searched for {record.depth}" if record.depth else f"search was cut short after {record.trials}"
            found.append(RecordGap("depth", record.depth, self.asked, f"{searched} trials, {self.asked} asked"))
        for text in entry.doubts:
            if text.startswith("drifted"):
                found.append(RecordGap("drift", record.drift, None, text))
            else:
                found.append(RecordGap("age", self.now_s - record.created_at, self.policy.max_age_s, text))
        return found


def _entries(evidence: Evidence, environment: Environment, policy: StalenessPolicy, now_s: float) -> list[_Entry]:
    known = evidence.known
    fields = {key: tuple(compare(then, environment, policy)) for key, then in known.environments.items()}
    return [
        _Entry(record, known.workloads[record.workload_key], fields[record.environment_key], doubts(record, policy, now_s))
        for record in (*known.records, *evidence.left_out)
        if record.workload_key in known.workloads and record.environment_key in fields
    ]


def relation_of(workload: Workload, other: Workload) -> Relation | None:
    """What the other has in common with the workload; None for nothing that a lookup goes by."""
    if other.key == workload.key:
        return Relation.WORKLOAD
    if other.cluster == workload.cluster:
        return Relation.CLUSTER
    return Relation.ANCHOR if other.anchor == workload.anchor else None


def _distance(workload: Workload, other: Workload, relation: Relation) -> float:
    return workload.anchor_distance(other) if relation is Relation.ANCHOR else workload.distance(other)


def operator_of(workload: Workload) -> str:
    """The first of the operators that it is fused from."""
    return workload.op.partition("+")[0]


def _misled(refutation: Refutation) -> str:
    slower = f"{refutation.ratio:.2f} times slower" if math.isfinite(refutation.ratio) else "nothing that ran"
    return f"refuted by run {refutation.run_id[:8]}: what it gave was {slower}"


def _difference(about: str, name: str, where: str, there: Json, here: Json, text: str) -> dict[str, Json]:
    return {"about": about, "field": name, "where": where, "there": there, "here": here, "text": text}
