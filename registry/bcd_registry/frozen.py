"""What a lock names, taken from the registry: exactly that, or an error that lists everything that cannot be used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from .errors import ConfigError, CorruptBlob, FrozenMismatch, NotFound
from .lock import Lock, LockedNetwork, LockedTask, other_fields, read_lock, trace_digest
from .model import Environment, Grade, Match, NetworkVersion, RecordState, TuningRecord, Workload
from .registry import Registry
from .staleness import FieldClass, compare

_TUNE_AND_LOCK = "tune the network here, then `bcd-registry lock` writes a lock that fits"
_ANOTHER = "give the lock of this network, or write one with `bcd-registry lock`"
_SHORT = 12


def load_lock(path: Path) -> Lock:
    """The lock in a file.

    Raises:
        ConfigError: The file cannot be read, is no lock, or one of another format.
        FrozenMismatch: It was edited or damaged.
    """
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not a lock of bcd-registry", hint="`bcd-registry lock` writes one") from error
    except OSError as error:
        raise ConfigError(f"cannot read the lock {path}: {error.strerror or error}", hint="check the path") from error
    return read_lock(text, str(path))


class FrozenLookup:
    """Lookups that a lock answers: each task has the record that the lock names, or none.

    It takes the place of a registry in planning. Nothing is written to the registry, not even that a record is damaged.
    """

    def __init__(self, registry: Registry, lock: Lock, network: NetworkVersion) -> None:
        """Answer for the network from the lock, with records of the registry."""
        self._registry, self._lock, self._network = registry, lock, network

    def lookup(self, workloads: Sequence[Workload], environment: Environment, depths: Mapping[str, int]) -> list[Match]:
        """One match for each workload, in order; `depths` does not matter.

        Raises:
            FrozenMismatch: See `frozen_records`.
        """
        records = frozen_records(self._lock, self._registry, self._network, environment)
        grades = {task.workload: task.grade for task in self._lock.tasks}
        return [_match(workload, records.get(workload.key), grades.get(workload.key, Grade.COLD)) for workload in workloads]

    def quarantine(self, ids: Sequence[str], reason: str) -> None:
        """Refuse to go on: another record would not be what the lock names.

        Raises:
            FrozenMismatch: Always.
        """
        named = {task.record: task for task in self._lock.tasks}
        problems = tuple(f"{_named(named[record_id])}: {reason}" for record_id in ids if record_id in named)
        raise _unusable(problems or (reason,))


def frozen_records(
    lock: Lock, registry: Registry, network: NetworkVersion, environment: Environment
) -> dict[str, TuningRecord]:
    """The records that the lock names, with their traces, by workload key.

    Args:
        network: As it was lowered here.
        environment: Where it is to run.

    Raises:
        FrozenMismatch: The lock is of another network or environment, or records are missing, damaged or not to be used.
    """
    if differing := other_fields(lock.network, _identity(network)):
        raise FrozenMismatch(_of_another_network(lock, network, differing), hint=_ANOTHER)
    problems = [*_environment_problems(lock, environment), *_task_problems(lock, network)]
    records: dict[str, TuningRecord] = {}
    for task in lock.tasks:
        if task.record is not None:
            try:
                records[task.workload] = _load(task, task.record, lock, registry)
            except (CorruptBlob, NotFound) as error:
                problems.append(f"{_named(task)}: {error.message}")
    if problems:
        raise _unusable(tuple(problems))
    return records


def _match(workload: Workload, record: TuningRecord | None, grade: Grade) -> Match:
    if record is None:
        return Match(workload, Grade.COLD if grade is Grade.EXACT else grade, None, (), "the lock leaves it untuned")
    return Match(workload, Grade.EXACT, record, (), f"locked at {record.median_s * 1e3:.4g} ms")


def _identity(network: NetworkVersion) -> LockedNetwork:
    return LockedNetwork(network.name, network.version, network.digest, dict(network.shapes))


def _of_another_network(lock: Lock, network: NetworkVersion, differing: Sequence[str]) -> str:
    ours, theirs = (" ".join(filter(None, (n.name, n.version))) for n in (network, lock.network))
    if ours != theirs:
        return f"the lock is of {theirs}, this is {ours}"
    if "digest" in differing:
        return f"the lock is of another file of {ours}: {lock.network.digest[:_SHORT]}, this is {network.digest[:_SHORT]}"
    return f"the lock is of {ours} with other shapes: {dict(lock.network.shapes)}, here {dict(network.shapes)}"


def _environment_problems(lock: Lock, environment: Environment) -> Iterator[str]:
    for difference in compare(Environment(lock.environment.fields), environment):
        if difference.field_class is not FieldClass.NOTE:
            yield f"another environment: {difference.describe()}"


def _task_problems(lock: Lock, network: NetworkVersion) -> Iterator[str]:
    """Tasks of one side only: another release may lower the same file otherwise."""
    locked = {task.workload: task for task in lock.tasks}
    here = {task.workload.key: task for task in network.tasks}
    for key, task in here.items():
        if key not in locked:
            yield f"{task.workload.op} {key[:_SHORT]}: not in the lock"
    for key, locked_task in locked.items():
        if key not in here:
            yield f"{_named(locked_task)}: the network has no such task here"


def _load(task: LockedTask, record_id: str, lock: Lock, registry: Registry) -> TuningRecord:
    """The record of a task.

    Raises:
        NotFound: It is gone, or is not to be used.
        CorruptBlob: It is damaged, or another one than was locked.
    """
    record = registry.get_record(record_id)
    if record.state is not RecordState.PUBLISHED:
        reason = f": {record.reason}" if record.reason else ""
        raise NotFound(f"record {record_id[:_SHORT]} is {record.state}{reason}")
    if (record.workload_key, record.environment_key) != (task.workload, lock.environment.key):
        raise CorruptBlob(f"record {record_id[:_SHORT]} is of another workload or environment")
    if trace_digest(record.trace) != task.trace:
        raise CorruptBlob(f"record {record_id[:_SHORT]} has another trace than was locked")
    return record


def _named(task: LockedTask) -> str:
    return f"{task.op} {task.workload[:_SHORT]}"


def _unusable(problems: tuple[str, ...]) -> FrozenMismatch:
    n = len(problems)
    return FrozenMismatch(f"the lock cannot be used: {n} problem{'s' * (n > 1)}", hint=_TUNE_AND_LOCK, problems=problems)
