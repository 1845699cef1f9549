"""Two things that are named by how their ids begin, compared: workloads, records or environments."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from .comparison import compare_workloads
from .differences import WorkloadDifference
from .errors import ConfigError, NotFound
from .explain import environment_as_json, workloads_as_json
from .model import Environment, Json, Selection, TuningRecord, Workload
from .registry import Registry
from .staleness import Difference, compare

_LOOKED_AT = 1000
_SHOWN_LENGTH = 12


class Kind(enum.StrEnum):
    """What two beginnings of ids name."""

    WORKLOADS = "workloads"
    RECORDS = "records"
    ENVIRONMENTS = "environments"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two things and all that differs.

    Attributes:
        there: The whole id of the first; `here` that of the second.
        workloads: Both, where workloads are compared or records of two workloads.
        environment: Fields of the environments that differ, notes included.
        workload: What differs between the workloads.
    """

    kind: Kind
    there: str
    here: str
    workloads: tuple[Workload, Workload] | None = None
    environment: tuple[Difference, ...] = ()
    workload: tuple[WorkloadDifference, ...] = ()

    def as_json(self) -> dict[str, Json]:
        """Plain JSON: both ids, and one list of all that differs."""
        differences = [*workloads_as_json(self.workload), *environment_as_json(self.environment)]
        return {"kind": self.kind, "there": self.there, "here": self.here, "differences": differences}


def compare_named(registry: Registry, there: str, here: str) -> Comparison:
    """Compare two workloads, records or environments, each given by how its key or id begins.

    Raises:
        ConfigError: One is not hexadecimal, or they may be of several kinds.
        NotFound: There are none of one kind that begin so, or too many.
    """
    for text in (there, here):
        _require_hex(text)
    found = {kind: (find(registry, there), find(registry, here)) for kind, find in _FINDERS.items()}
    kind = _only_kind(found, there, here)
    ids = found[kind][0].pop(), found[kind][1].pop()
    return _COMPARERS[kind](registry, *ids)


def find_record(registry: Registry, id_prefix: str) -> TuningRecord:
    """The one record whose id begins so, whatever its state, without its trace.

    Raises:
        ConfigError: It is not hexadecimal.
        NotFound: None, or more than one.
    """
    _require_hex(id_prefix)
    found = registry.select(Selection(record=id_prefix))
    if len(found) > 1:
        raise NotFound(f"{len(found)} records begin with {id_prefix}", hint="give more digits")
    if not found:
        raise NotFound(f"no record begins with {id_prefix}", hint="`bcd-registry records list` lists them")
    return found[0]


def _require_hex(text: str) -> None:
    if not re.fullmatch(r"[0-9a-f]{1,64}", text):
        raise ConfigError(f"{text!r} is not how a key or an id begins", hint="hex digits, as `records list` shows them")


def _only_kind(found: Mapping[Kind, tuple[set[str], set[str]]], there: str, here: str) -> Kind:
    """The kind of which each text names exactly one."""
    both = [kind for kind, ids in found.items() if all(ids)]
    single = [kind for kind in both if all(len(ids) == 1 for ids in found[kind])]
    if len(single) == 1:
        return single[0]
    if single:
        raise ConfigError(f"{there} and {here} may be {' or '.join(single)}", hint="give more digits")
    if both:
        many = max((ids for kind in both for ids in found[kind]), key=len)
        shown = ", ".join(sorted(id_[:_SHOWN_LENGTH] for id_ in many)[:4])
        raise NotFound(f"{there} and {here} name several {both[0]}: {shown}", hint="give more digits")
    absent = next((text for text, i in ((there, 0), (here, 1)) if not any(ids[i] for ids in found.values())), "")
    if absent:
        raise NotFound(f"no workload, record or environment begins with {absent}", hint="`records list` shows some")
    raise NotFound(f"{there} and {here} are not of one kind", hint="give two workloads, two records or two environments")


def _workloads(registry: Registry, prefix: str) -> set[str]:
    """Keys of workloads that have records, or that a network has."""
    keys = {record.workload_key for record in registry.list_records(workload=prefix, limit=_LOOKED_AT)}
    tasks = (task.workload.key for network in registry.list_networks() for task in network.tasks)
    return keys | {key for key in tasks if key.startswith(prefix)}


def _records(registry: Registry, prefix: str) -> set[str]:
    return {record.id for record in registry.select(Selection(record=prefix))}


def _environments(registry: Registry, prefix: str) -> set[str]:
    """Keys of environments that have records: the newest are looked at first, since one environment may have very many."""
    newest = {record.environment_key for record in registry.list_records(limit=_LOOKED_AT)}
    known = newest | {run.environment_key for run in registry.list_runs()}
    found = {key for key in known if key.startswith(prefix)}
    return found or {record.environment_key for record in registry.select(Selection(environment=prefix))}


def _compare_workloads(registry: Registry, there: str, here: str) -> Comparison:
    old, new = _both_workloads(registry, there, here)
    return Comparison(Kind.WORKLOADS, there, here, (old, new), workload=tuple(compare_workloads(old, new)))


def _compare_environments(registry: Registry, there: str, here: str) -> Comparison:
    fields = _fields(registry.get_environment(there), registry.get_environment(here))
    return Comparison(Kind.ENVIRONMENTS, there, here, environment=fields)


def _compare_records(registry: Registry, there: str, here: str) -> Comparison:
    """By what they are of: their workloads and their environments."""
    old, new = find_record(registry, there), find_record(registry, here)
    workloads = _both_workloads(registry, old.workload_key, new.workload_key)
    environments = (registry.get_environment(record.environment_key) for record in (old, new))
    differences = tuple(compare_workloads(*workloads))
    return Comparison(Kind.RECORDS, there, here, workloads, _fields(*environments), differences)


def _both_workloads(registry: Registry, there: str, here: str) -> tuple[Workload, Workload]:
    found = registry.get_workloads([there, here])
    for key in (there, here):
        if key not in found:
            raise NotFound(f"workload {key[:_SHOWN_LENGTH]} is not stored")
    return found[there], found[here]


def _fields(there: Environment, here: Environment) -> tuple[Difference, ...]:
    return tuple(compare(there, here))


_FINDERS: Mapping[Kind, Callable[[Registry, str], set[str]]] = MappingProxyType(
    {Kind.WORKLOADS: _workloads, Kind.RECORDS: _records, Kind.ENVIRONMENTS: _environments}
)
_COMPARERS: Mapping[Kind, Callable[[Registry, str, str], Comparison]] = MappingProxyType(
    {
        Kind.WORKLOADS: _compare_workloads,
        Kind.RECORDS: _compare_records,
        Kind.ENVIRONMENTS: _compare_environments,
    }
)
