"""Verdicts: what keeps a record from being used, what makes it a prior, what is only shown. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from .model import KEY_SCHEME, Environment, Json, TuningRecord, canonical_json, digest_of


class FieldClass(enum.StrEnum):
    """What a difference in an environment's field means for a record."""

    HARD = "hard"
    SOFT = "soft"
    NOTE = "note"


FIELD_CLASSES: Mapping[str, FieldClass] = MappingProxyType(
    {
        "tvm": FieldClass.SOFT,
        "tvm_ffi": FieldClass.NOTE,
        "llvm": FieldClass.SOFT,
        "target": FieldClass.HARD,
        "isa": FieldClass.HARD,
        "cores": FieldClass.SOFT,
        "measurement": FieldClass.SOFT,
        "cpu_model": FieldClass.NOTE,
        "calibration_ms": FieldClass.NOTE,
        "load": FieldClass.NOTE,
    }
)
"""The class of each known field; a field that is not here is soft, so that a new one is never silently ignored."""

VERSION_FIELDS = frozenset({"tvm", "llvm"})
"""Fields whose class `StalenessPolicy.on_version` decides."""

_UNORDERED = frozenset({"isa"})
_SHOWN_LENGTH = 60
_UNITS_S = (("d", 86400.0), ("h", 3600.0), ("min", 60.0))


class OnVersion(enum.StrEnum):
    """What becomes of a record that another release of the compiler made."""

    PRIOR = "prior"
    REFUSE = "refuse"
    ACCEPT = "accept"


_ON_VERSION = MappingProxyType(
    {OnVersion.PRIOR: FieldClass.SOFT, OnVersion.REFUSE: FieldClass.HARD, OnVersion.ACCEPT: FieldClass.NOTE}
)


@dataclass(frozen=True, slots=True)
class StalenessPolicy:
    """What a user says about records that are old or of another release.

    Attributes:
        max_age_s: Seconds after which a record is a prior only; None lets none grow old.
        on_version: What a difference in one of `VERSION_FIELDS` means.
    """

    max_age_s: float | None = None
    on_version: OnVersion = OnVersion.PRIOR


DEFAULT_POLICY = StalenessPolicy()


def field_class(name: str, policy: StalenessPolicy = DEFAULT_POLICY) -> FieldClass:
    """The class of the field under the policy."""
    if name in VERSION_FIELDS:
        return _ON_VERSION[policy.on_version]
    return FIELD_CLASSES.get(name, FieldClass.SOFT)


@dataclass(frozen=True, slots=True)
class Difference:
    """One field that differs between two environments.

    Attributes:
        then: The value the record was measured with; None when it had none.
        now: The current value; None when there is none.
    """

    field: str
    then: Json
    now: Json
    field_class: FieldClass

    def describe(self) -> str:
        """Both values for people; of tables and lists only what differs. One line."""
        parts = ""
        if isinstance(self.then, Mapping) and isinstance(self.now, Mapping):
            parts = _describe_tables(self.field, self.then, self.now)
        elif isinstance(self.then, list | tuple) and isinstance(self.now, list | tuple):
            parts = _describe_lists(self.field, self.then, self.now)
        return parts or f"{self.field} {_shown(self.then)} then, {_shown(self.now)} now"


def environment_key(environment: Environment) -> str:
    """Hex SHA-256 of the hard and soft fields. Equal keys if and only if `compare` finds nothing but notes, by default."""
    fields = {
        name: _comparable(name, value)
        for name, value in environment.fields.items()
        if value is not None and field_class(name) is not FieldClass.NOTE
    }
    return digest_of("environment", str(KEY_SCHEME), canonical_json(fields))


def compare(then: Environment, now: Environment, policy: StalenessPolicy = DEFAULT_POLICY) -> list[Difference]:
    """Every field that differs, hard ones first, then by name. An absent field equals one that is None."""
    differences = [
        Difference(name, then.fields.get(name), now.fields.get(name), field_class(name, policy))
        for name in sorted({*then.fields, *now.fields})
        if not _same(name, then.fields.get(name), now.fields.get(name))
    ]
    order = list(FieldClass)
    return sorted(differences, key=lambda d: order.index(d.field_class))


class Verdict(enum.StrEnum):
    """What a record is good for here and now."""

    FRESH = "fresh"
    SOFT = "soft"
    HARD = "hard"


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict on one record.

    Attributes:
        verdict: FRESH may be served as a result, SOFT is a prior only, HARD is of no use.
        differences: Every field that differs, notes included, hard ones first.
        reasons: What the verdict rests on, a line each; empty for FRESH.
    """

    verdict: Verdict
    differences: tuple[Difference, ...]
    reasons: tuple[str, ...]


def judge(
    record: TuningRecord, then: Environment, now: Environment, *, policy: StalenessPolicy = DEFAULT_POLICY, now_s: float
) -> Judgement:
    """What the record, measured in `then`, is good for in `now`.

    Args:
        now_s: Unix seconds.
    """
    differences = tuple(compare(then, now, policy))
    hard = tuple(d.describe() for d in differences if d.field_class is FieldClass.HARD)
    if hard:
        return Judgement(Verdict.HARD, differences, hard)
    soft = tuple(d.describe() for d in differences if d.field_class is FieldClass.SOFT)
    reasons = (*soft, *doubts(record, policy, now_s))
    return Judgement(Verdict.SOFT if reasons else Verdict.FRESH, differences, reasons)


def doubts(record: TuningRecord, policy: StalenessPolicy, now_s: float) -> tuple[str, ...]:
    """What makes the record a prior only, whatever its environment: its age and its drift, a line each."""
    found = []
    age_s = now_s - record.created_at
    if policy.max_age_s is not None and age_s > policy.max_age_s:
        found.append(f"measured {_duration(age_s)} ago, older than {_duration(policy.max_age_s)}")
    if record.drift:
        found.append(f"drifted: {record.drift}")
    return tuple(found)


def _duration(seconds: float) -> str:
    """In the largest unit that fits, such as `90 d`."""
    unit, size = next(((unit, size) for unit, size in _UNITS_S if seconds >= size), ("s", 1.0))
    return f"{seconds / size:.4g} {unit}"


def _same(name: str, then: Json, now: Json) -> bool:
    return canonical_json(_comparable(name, then)) == canonical_json(_comparable(name, now))


def _comparable(name: str, value: Json) -> Json:
    if name in _UNORDERED and isinstance(value, list | tuple):
        return sorted(set(map(canonical_json, value)))
    return value


def _describe_tables(field: str, then: Mapping[str, Json], now: Mapping[str, Json]) -> str:
    names = [n for n in sorted({*then, *now}) if not _same("", then.get(n), now.get(n))]
    return ", ".join(f"{field}.{n} {_shown(then.get(n))} then, {_shown(now.get(n))} now" for n in names)


def _describe_lists(field: str, then: Sequence[Json], now: Sequence[Json]) -> str:
    gone, come = [v for v in then if v not in now], [v for v in now if v not in then]
    return f"{field} {_listed(gone)} only then, {_listed(come)} only now" if gone or come else ""


def _listed(values: list[Json]) -> str:
    return "+".join(_shown(v) for v in values) or "nothing"


def _shown(value: Json) -> str:
    text = "none" if value is None else value if isinstance(value, str) else canonical_json(value)
    return text if len(text) <= _SHOWN_LENGTH else f"{text[: _SHOWN_LENGTH - 1]}…"
