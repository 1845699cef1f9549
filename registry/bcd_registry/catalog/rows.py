"""Frozen values as rows, and rows as frozen values.

A row may hold what nobody wrote: a disk or an editor damaged it. Reading such a one is a `CorruptBlob`.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import RowMapping

from bcd_registry.blobs.digests import is_digest
from bcd_registry.errors import CorruptBlob
from bcd_registry.model import (
    CostModelSnapshot,
    Decision,
    Environment,
    Event,
    EventKind,
    Json,
    Lease,
    NetworkVersion,
    RecordState,
    Refutation,
    Relative,
    RunSummary,
    Task,
    TuningRecord,
    Workload,
    canonical_json,
    digest_of,
)

Row = dict[str, Any]

_LOG = logging.getLogger(__name__)
_DAMAGED = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)
_SHOWN_LENGTH = 120
_Found = TypeVar("_Found")
_Value = TypeVar("_Value")
_Rest = ParamSpec("_Rest")


def readable(found: Iterable[_Found], read: Callable[[_Found], _Value]) -> list[_Value]:
    """The values in the rows; a damaged row is left out, and a line in the log says so."""
    values = []
    for row in found:
        try:
            values.append(read(row))
        except CorruptBlob as error:
            _LOG.warning("%s; it is left out", error.message)
    return values


def _reading(
    what: str, name: str
) -> Callable[[Callable[Concatenate[RowMapping, _Rest], _Value]], Callable[Concatenate[RowMapping, _Rest], _Value]]:
    """Whatever a damaged row does to the reader is a `CorruptBlob` that names the row."""

    def made(read: Callable[Concatenate[RowMapping, _Rest], _Value]) -> Callable[Concatenate[RowMapping, _Rest], _Value]:
        @functools.wraps(read)
        def checked(row: RowMapping, /, *args: _Rest.args, **kwargs: _Rest.kwargs) -> _Value:
            try:
                return read(row, *args, **kwargs)
            except _DAMAGED as error:
                named = ascii(row[name])[1:-1][:12]
                reason = (str(error).splitlines() or [type(error).__name__])[0][:_SHOWN_LENGTH]
                raise CorruptBlob(
                    f"the row of {what} {named} is damaged: {reason}", hint="restore the catalog from a copy"
                ) from error

        return checked

    return made


def workload_row(workload: Workload) -> Row:
    """The row of `bcd_workloads`."""
    return {
        "key": workload.key,
        "cluster": workload.cluster,
        "anchor": workload.anchor,
        "extents": canonical_json(workload.extents),
        "anchor_extents": canonical_json(workload.anchor_extents),
        "flops": workload.flops,
        "bytes_moved": workload.bytes_moved,
        "op": workload.op,
        "description": workload.description,
    }


@_reading("environment", "key")
def environment_of(row: RowMapping) -> Environment:
    """The environment in the row."""
    return Environment(_table(row, "fields"))


@_reading("workload", "key")
def workload_of(row: RowMapping) -> Workload:
    """The workload in the row."""
    return dataclasses.replace(relative_of(row), description=_text(row, "description"))


@_reading("workload", "key")
def relative_of(row: RowMapping) -> Workload:
    """The workload in the row, without its description."""
    return Workload(
        key=row["key"],
        cluster=_text(row, "cluster"),
        anchor=_text(row, "anchor"),
        extents=_extents(row, "extents"),
        anchor_extents=_extents(row, "anchor_extents"),
        flops=_number(row, "flops"),
        bytes_moved=_number(row, "bytes_moved"),
        op=_text(row, "op"),
        description="",
    )


def relatives_of(found: Iterable[RowMapping]) -> list[Relative]:
    """The relatives in the rows, of which there is one for each environment of a workload."""
    by_key: dict[str, dict[str, RowMapping]] = {}
    for row in found:
        by_key.setdefault(row["key"], {})[row["environment_key"]] = row
    return readable(by_key.values(), _relative_of_all)


def _relative_of_all(of_environments: Mapping[str, RowMapping]) -> Relative:
    n_records = {key: int(row["n_records"]) for key, row in of_environments.items()}
    return Relative(relative_of(next(iter(of_environments.values()))), n_records)


def network_row(network: NetworkVersion) -> Row:
    """The row of `bcd_networks`."""
    return {
        "name": network.name,
        "version": network.version,
        "source": network.source,
        "digest": network.digest,
        "shapes": canonical_json(dict(network.shapes)),
        "created_at": network.created_at,
    }


def task_rows(network: NetworkVersion) -> list[Row]:
    """The rows of `bcd_network_tasks`, in the order of the tasks."""
    return [
        {
            "network": network.name,
            "version": network.version,
            "position": position,
            "name": task.name,
            "workload_key": task.workload.key,
            "weight": task.weight,
        }
        for position, task in enumerate(network.tasks)
    ]


@_reading("task", "name")
def task_of(row: RowMapping, workloads: Mapping[str, Workload]) -> Task:
    """The task in the row."""
    return Task(name=_text(row, "name"), workload=workloads[row["workload_key"]], weight=_whole(row, "weight"))


@_reading("network", "name")
def network_of(row: RowMapping, tasks: tuple[Task, ...]) -> NetworkVersion:
    """The network in the row, with its tasks."""
    return NetworkVersion(
        name=row["name"],
        version=row["version"],
        source=_text(row, "source"),
        digest=_text(row, "digest"),
        shapes={name: tuple(map(int, shape)) for name, shape in _table(row, "shapes").items()},
        tasks=tasks,
        created_at=_number(row, "created_at"),
    )


def record_row(record: TuningRecord, trace_digest: str) -> Row:
    """The row of `bcd_records`, without the trace; what only events say is empty."""
    return {
        "id": record.id,
        "workload_key": record.workload_key,
        "environment_key": record.environment_key,
        "trace_digest": trace_digest,
        "sketch": record.sketch,
        "decisions": canonical_json(record.decisions),
        "run_times_s": canonical_json(record.run_times_s),
        "median_s": record.median_s,
        "untuned_s": record.untuned_s,
        "trials": record.trials,
        "depth": record.depth,
        "state": record.state.value,
        "reason": record.reason,
        "run_id": record.run_id,
        "parent_id": record.parent_id,
        "cost_model_id": record.cost_model_id,
        "drift": "",
        "invalidated": "",
        "created_at": record.created_at,
    }


@_reading("record", "id")
def record_of(row: RowMapping) -> tuple[TuningRecord, str]:
    """The record in the row, without its trace, and the digest of the trace."""
    record = TuningRecord(
        workload_key=row["workload_key"],
        environment_key=row["environment_key"],
        trace=None,
        sketch=_text(row, "sketch"),
        decisions=_decisions_of(row["decisions"]),
        run_times_s=_run_times(row),
        trials=_whole(row, "trials"),
        depth=_whole(row, "depth"),
        state=RecordState(row["state"]),
        run_id=_text(row, "run_id"),
        parent_id=None if row["parent_id"] is None else _text(row, "parent_id"),
        untuned_s=None if row["untuned_s"] is None else _number(row, "untuned_s"),
        created_at=_number(row, "created_at"),
        reason=_text(row, "reason"),
        cost_model_id=None if row["cost_model_id"] is None else _text(row, "cost_model_id"),
        drift=_text(row, "drift"),
        invalidated=_text(row, "invalidated"),
    )
    if record.id != row["id"]:
        raise ValueError("its id does not follow from its fields")
    return record, _digest(row, "trace_digest")


def _decisions_of(text: str) -> tuple[Decision, ...]:
    """As they were: tuples, which is what makes two equal. A lookup reads thousands."""
    decisions = tuple((kind, tuple(value) if type(value) is list else value) for kind, value in json.loads(text))
    for kind, value in decisions:
        if type(kind) is not str or {*map(type, value if type(value) is tuple else (value,))} - {int}:
            raise ValueError("a decision is no kind and whole numbers")
    return decisions


def _times_of(text: str) -> tuple[float, ...]:
    """One or more: without, a record has no latency."""
    times = tuple(map(float, json.loads(text)))
    if not times:
        raise ValueError("no run times")
    return times


def refutation_row(refutation: Refutation) -> Row:
    """The row of `bcd_refutations`. What is infinite is NULL: databases do not agree on how to spell infinity."""
    return {
        "record_id": refutation.record_id,
        "workload_key": refutation.workload_key,
        "environment_key": refutation.environment_key,
        "cluster": refutation.cluster,
        "distance": None if refutation.distance == math.inf else refutation.distance,
        "ratio": None if refutation.ratio == math.inf else refutation.ratio,
        "run_id": refutation.run_id,
        "created_at": refutation.created_at,
    }


@_reading("refutation of", "record_id")
def refutation_of(row: RowMapping) -> Refutation:
    """The refutation in the row."""
    return Refutation(
        record_id=row["record_id"],
        workload_key=row["workload_key"],
        cluster=_text(row, "cluster"),
        distance=math.inf if row["distance"] is None else _number(row, "distance"),
        environment_key=row["environment_key"],
        run_id=_text(row, "run_id"),
        ratio=math.inf if row["ratio"] is None else _number(row, "ratio"),
        created_at=_number(row, "created_at"),
    )


def event_row(event: Event) -> Row:
    """The row of `bcd_events`; its records are rows of their own."""
    return {
        "id": event.id,
        "kind": event.kind.value,
        "reason": event.reason,
        "selection": canonical_json(dict(event.selection)),
        "created_at": event.created_at,
    }


@_reading("event", "id")
def event_of(row: RowMapping, records: Sequence[str]) -> Event:
    """The event in the row, about the records."""
    return Event(
        id=row["id"],
        kind=EventKind(row["kind"]),
        reason=_text(row, "reason"),
        selection=_table(row, "selection"),
        records=tuple(records),
        created_at=_number(row, "created_at"),
    )


def cost_model_row(snapshot: CostModelSnapshot, booster_digest: str, samples_digest: str) -> Row:
    """The row of `bcd_cost_models`; its id is a digest of target, bytes and metadata."""
    metadata = canonical_json(dict(snapshot.metadata))
    return {
        "id": digest_of(snapshot.target, booster_digest, samples_digest, metadata),
        "target": snapshot.target,
        "booster_digest": booster_digest,
        "samples_digest": samples_digest,
        "metadata": metadata,
        "created_at": snapshot.created_at,
    }


@_reading("cost model", "id")
def cost_model_of(row: RowMapping) -> tuple[CostModelSnapshot, str, str]:
    """The snapshot in the row, without its bytes, and the digests of booster and samples."""
    snapshot = CostModelSnapshot(
        target=row["target"],
        booster=b"",
        samples=b"",
        metadata=_table(row, "metadata"),
        created_at=_number(row, "created_at"),
    )
    return snapshot, _digest(row, "booster_digest"), _digest(row, "samples_digest")


def run_row(run: RunSummary) -> Row:
    """The row of `bcd_runs`. A seed may have more than 64 bits, so it is text."""
    return {
        "id": run.id,
        "network": run.network,
        "version": run.version,
        "environment_key": run.environment_key,
        "seed": str(run.seed),
        "trials": run.trials,
        "tuning_s": run.tuning_s,
        "finished": run.finished,
        "created_at": run.created_at,
        "report": canonical_json(run.report),
    }


@_reading("run", "id")
def run_of(row: RowMapping) -> RunSummary:
    """The run in the row."""
    return RunSummary(
        id=row["id"],
        network=_text(row, "network"),
        version=_text(row, "version"),
        environment_key=_text(row, "environment_key"),
        seed=int(row["seed"]),
        trials=_whole(row, "trials"),
        tuning_s=_number(row, "tuning_s"),
        finished=row["finished"],
        created_at=_number(row, "created_at"),
        report=_json(row, "report"),
    )


def lease_of(row: RowMapping) -> Lease:
    """The lease in the row of `bcd_leases`."""
    return Lease(name=row["name"], holder=row["holder"], token=row["token"], expires_at=row["expires_at"])


def _text(row: RowMapping, name: str) -> str:
    value = row[name]
    if type(value) is not str:
        raise TypeError(f"its {name} is no text")
    return value


def _digest(row: RowMapping, name: str) -> str:
    value = _text(row, name)
    if not is_digest(value):
        raise ValueError(f"its {name} is no digest")
    return value


def _whole(row: RowMapping, name: str) -> int:
    value = row[name]
    if type(value) is not int:
        raise TypeError(f"its {name} is no whole number")
    return value


def _number(row: RowMapping, name: str) -> float:
    value = row[name]
    if type(value) not in (int, float) or not math.isfinite(value):
        raise TypeError(f"its {name} is no number")
    return float(value)


def _json(row: RowMapping, name: str) -> Json:
    value = json.loads(row[name])
    canonical_json(value)  # refuses what is no number, which is JSON to Python alone
    return value


def _table(row: RowMapping, name: str) -> dict[str, Json]:
    value = _json(row, name)
    if type(value) is not dict:
        raise TypeError(f"its {name} are no table")
    return value


def _extents(row: RowMapping, name: str) -> tuple[int, ...]:
    extents = tuple(_json(row, name))
    if {*map(type, extents)} - {int} or min(extents, default=1) < 1:
        raise ValueError(f"its {name} are no whole numbers from 1")
    return extents


def _run_times(row: RowMapping) -> tuple[float, ...]:
    times = tuple(_json(row, "run_times_s"))
    if not times or not all(type(t) in (int, float) and 0.0 < t < math.inf for t in times):
        raise ValueError("its latencies are no numbers above 0")
    return times
