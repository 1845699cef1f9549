"""Verdicts on two environments: what keeps a record from being used, what makes it a prior, what is only shown."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from .model import KEY_SCHEME, Environment, Json, canonical_json, digest_of


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
    }
)
"""The class of each known field; a field that is not here is soft, so that a new one is never silently ignored."""

_UNORDERED = frozenset({"isa"})
_SHOWN_LENGTH = 60


def field_class(name: str) -> FieldClass:
    """The class of the field."""
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
    """Hex SHA-256 of the hard and soft fields. Equal keys if and only if `compare` finds nothing but notes."""
    fields = {
        name: _comparable(name, value)
        for name, value in environment.fields.items()
        if value is not None and field_class(name) is not FieldClass.NOTE
    }
    return digest_of("environment", str(KEY_SCHEME), canonical_json(fields))


def compare(then: Environment, now: Environment) -> list[Difference]:
    """Every field that differs, hard ones first, then by name. An absent field equals one that is None."""
    differences = [
        Difference(name, then.fields.get(name), now.fields.get(name), field_class(name))
        for name in sorted({*then.fields, *now.fields})
        if not _same(name, then.fields.get(name), now.fields.get(name))
    ]
    order = list(FieldClass)
    return sorted(differences, key=lambda d: order.index(d.field_class))


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
