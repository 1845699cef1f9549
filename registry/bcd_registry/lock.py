"""A lock: which record each task of a network uses, as a text that people review and git compares. Pure.

    # Which schedules a network is compiled with. Made by `bcd-registry lock`; do not edit.
    checksum = "..."

    format = 1

    [network]
    ...
    [[tasks]]
    op = "conv2d+add+relu"
    workload = "..."
    record = "..."

It is TOML. The checksum is the SHA-256 of everything below its line, so that a slip of the hand or a bad merge is noticed; it
keeps nobody from writing another lock. Nothing in it depends on the time, the host or the order of anything.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, StringConstraints, TypeAdapter, ValidationError

from .errors import ConfigError, FrozenMismatch
from .model import Environment, Grade, Json, Match, NetworkVersion, canonical_json
from .staleness import Difference, FieldClass, compare, environment_key, field_class

FORMAT = 1
"""Version of the text."""

_HEADING = "# Which schedules a network is compiled with. Made by `bcd-registry lock`; do not edit."
_CHECKSUM = re.compile(r'^checksum = "([0-9a-f]*)"\n', re.MULTILINE)
_MAKE_AGAIN = "write it again with `bcd-registry lock`"
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_LONG_LIST = 6
_DIGITS = 6

Hex = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(gt=0)]


@dataclass(frozen=True, slots=True)
class LockedNetwork:
    """The network that a lock is for.

    Attributes:
        digest: Hex SHA-256 of the source's bytes.
    """

    name: str
    version: str
    digest: Hex
    shapes: Mapping[str, tuple[Count, ...]]


@dataclass(frozen=True, slots=True)
class LockedEnvironment:
    """The environment that its records were measured in: the hard and soft fields, and the key over them."""

    key: Hex
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LockedTask:
    """One task and what it is compiled with.

    Attributes:
        op: A label for people.
        workload: The workload's key.
        weight: How many times the network calls it.
        grade: What the registry knew of it: only EXACT has a record.
        record: The record's id; None for a task that stays untuned because nothing is published for it.
        trace: `trace_digest` of the record's trace.
        median_ms: The record's latency where it was measured.
    """

    op: str
    workload: Hex
    weight: Count
    grade: Grade
    record: Hex | None = None
    trace: Hex | None = None
    median_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Lock:
    """What a lock says."""

    network: LockedNetwork
    environment: LockedEnvironment
    tasks: tuple[LockedTask, ...]

    @property
    def untuned(self) -> list[LockedTask]:
        """Tasks for which nothing was published."""
        return [task for task in self.tasks if task.record is None]

    def as_json(self) -> dict[str, Json]:
        """Plain JSON."""
        return {"format": FORMAT, **dataclasses.asdict(self)}


def make_lock(network: NetworkVersion, matches: Sequence[Match], environment: Environment) -> Lock:
    """The lock of what a lookup found.

    Args:
        matches: One for each task of the network, in order; records with their traces.
    """
    tasks = [_locked(task.workload.op, task.weight, match) for task, match in zip(network.tasks, matches, strict=True)]
    fields = {n: v for n, v in environment.as_json().items() if v is not None and field_class(n) is not FieldClass.NOTE}
    return Lock(
        LockedNetwork(network.name, network.version, network.digest, dict(sorted(network.shapes.items()))),
        LockedEnvironment(environment_key(environment), fields),
        tuple(sorted(tasks, key=lambda task: (task.op, task.workload))),
    )


def trace_digest(trace: Json) -> str:
    """Hex SHA-256 of a trace, however it is stored."""
    return hashlib.sha256(canonical_json(trace).encode()).hexdigest()


def write_lock(lock: Lock) -> str:
    """The lock's text; equal locks have equal texts."""
    content = "\n".join(_lines(lock)) + "\n"
    return f'{_HEADING}\nchecksum = "{_checksum(content)}"\n{content}'


def read_lock(text: str, where: str) -> Lock:
    """The lock in a text.

    Args:
        where: Names it in errors.

    Raises:
        ConfigError: It is no lock, or one of another format.
        FrozenMismatch: It was edited or damaged.
    """
    text = text.replace("\r\n", "\n")
    found = _CHECKSUM.search(text)
    if found is None:
        raise ConfigError(f"{where} is not a lock of bcd-registry", hint="`bcd-registry lock` writes one")
    intact = found[1] == _checksum(text[found.end() :])
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FrozenMismatch(f"{where} was edited or damaged: {error}", hint=_MAKE_AGAIN) from error
    if (written := content.get("format")) != FORMAT:
        raise ConfigError(f"{where} has the format {written!r}, this release reads {FORMAT}", hint=_format_hint(written))
    if not intact:
        raise FrozenMismatch(f"{where} was edited or damaged: its checksum is not that of its content", hint=_MAKE_AGAIN)
    try:
        return TypeAdapter(Lock).validate_python(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{where} is not a lock: {place}: {first['msg']}", hint=_MAKE_AGAIN) from error


@dataclass(frozen=True, slots=True)
class LockDifference:
    """What changed between two locks.

    Attributes:
        network: Names of the fields of the network that differ.
        environment: Hard and soft differences of the environment.
        records: Tasks of both with another record, or with one where there was none, or none where there was one.
        latencies: Tasks of both with the same record, measured again.
        weights: Tasks of both that the network calls more or less often.
        n_same: Tasks in which nothing differs.
    """

    network: tuple[str, ...]
    environment: tuple[Difference, ...]
    added: tuple[LockedTask, ...]
    removed: tuple[LockedTask, ...]
    records: tuple[tuple[LockedTask, LockedTask], ...]
    latencies: tuple[tuple[LockedTask, LockedTask], ...]
    weights: tuple[tuple[LockedTask, LockedTask], ...]
    n_same: int

    def as_json(self) -> dict[str, Json]:
        """Plain JSON; pairs are lists of the old and the new one."""
        return dataclasses.asdict(self)


def compare_locks(old: Lock, new: Lock) -> LockDifference:
    """What changed from the old to the new one."""
    before, after = ({task.workload: task for task in lock.tasks} for lock in (old, new))
    both = [(task, after[task.workload]) for task in old.tasks if task.workload in after]
    then, now = (Environment(lock.environment.fields) for lock in (old, new))
    return LockDifference(
        network=other_fields(old.network, new.network),
        environment=tuple(compare(then, now)),
        added=tuple(task for task in new.tasks if task.workload not in before),
        removed=tuple(task for task in old.tasks if task.workload not in after),
        records=tuple((a, b) for a, b in both if (a.record, a.trace) != (b.record, b.trace)),
        latencies=tuple((a, b) for a, b in both if a.record == b.record and a.median_ms != b.median_ms),
        weights=tuple((a, b) for a, b in both if a.weight != b.weight),
        n_same=sum(a == b for a, b in both),
    )


def other_fields(one: LockedNetwork, other: LockedNetwork) -> tuple[str, ...]:
    """Names of the fields in which two networks differ."""
    first, second = (json.loads(canonical_json(dataclasses.asdict(network))) for network in (one, other))
    return tuple(field.name for field in dataclasses.fields(one) if first[field.name] != second[field.name])


def _locked(op: str, weight: int, match: Match) -> LockedTask:
    record = match.record
    if record is None:
        return LockedTask(op, match.workload.key, weight, match.grade)
    return LockedTask(
        op=op,
        workload=match.workload.key,
        weight=weight,
        grade=match.grade,
        record=record.id,
        trace=trace_digest(record.trace),
        median_ms=round(record.median_s * 1e3, _DIGITS),
    )


def _checksum(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


def _format_hint(written: object) -> str:
    newer = isinstance(written, int) and written > FORMAT
    return "a newer release wrote it: upgrade bcd-registry" if newer else _MAKE_AGAIN


def _lines(lock: Lock) -> Iterator[str]:
    yield from ("", f"format = {FORMAT}", "", "[network]")
    yield from _pairs(dataclasses.asdict(lock.network))
    yield from ("", "[environment]", f"key = {_value(lock.environment.key)}", "", "[environment.fields]")
    yield from _pairs(lock.environment.fields)
    for task in lock.tasks:
        yield from ("", "[[tasks]]")
        yield from _pairs(dataclasses.asdict(task))


def _pairs(table: Mapping[str, Json]) -> Iterator[str]:
    return (f"{_key(name)} = {_value(value)}" for name, value in table.items() if value is not None)


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _value(name)


def _value(value: Json) -> str:
    """TOML's spelling of a plain value: a long list has a line for each item, so that a difference is one line."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(_pairs(dict(sorted(value.items()))))} }}" if value else "{}"
    if isinstance(value, list | tuple):
        items = [_value(item) for item in value]
        return "[\n" + "".join(f"  {item},\n" for item in items) + "]" if len(items) > _LONG_LIST else f"[{', '.join(items)}]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("\x7f", "\\u007f")
