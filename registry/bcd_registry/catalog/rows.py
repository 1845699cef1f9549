"""Frozen values as rows, and rows as frozen values. Pure."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import RowMapping

from bcd_registry.errors import CorruptBlob
from bcd_registry.model import (
    CostModelSnapshot,
    Decision,
    Environment,
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

_More = ParamSpec("_More")
_Value = TypeVar("_Value")
_OfRow = Callable[Concatenate[RowMapping, _More], _Value]


def _row_of(table: str) -> Callable[[_OfRow[_More, _Value]], _OfRow[_More, _Value]]:
    """For what reads a row: values that cannot be, such as JSON that somebody edited, become an error that names the row."""

    def decorated(read: _OfRow[_More, _Value]) -> _OfRow[_More, _Value]:
        @functools.wraps(read)
        def checked(row: RowMapping, /, *arguments: _More.args, **options: _More.kwargs) -> _Value:
            try:
                return read(row, *arguments, **options)
            except (ValueError, TypeError, AttributeError, RecursionError) as error:
                name = str(next(iter(row.values())))[:12]
                message = f"the row {name!r} of {table} cannot be read: {' '.join(str(error).split())}"
                raise CorruptBlob(message, hint="restore the catalog from a backup, or delete the row") from error

        return checked

    return decorated


def _table_of(text: str) -> dict[str, Any]:
    """A JSON object."""
    value = json.loads(text)
    if not isinstance(value, dict):
        raise TypeError(f"an object is wanted, not {text[:40]!r}")
    return value


@_row_of("bcd_environments")
def environment_of(row: RowMapping) -> Environment:
    """The environment in the row."""
    return Environment(_table_of(row["fields"]))


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


def workload_of(row: RowMapping) -> Workload:
    """The workload in the row."""
    return dataclasses.replace(relative_of(row), description=row["description"])


@_row_of("bcd_workloads")
def relative_of(row: RowMapping) -> Workload:
    """The workload in the row, without its description."""
    return Workload(
        key=row["key"],
        cluster=row["cluster"],
        anchor=row["anchor"],
        extents=tuple(map(int, json.loads(row["extents"]))),
        anchor_extents=tuple(map(int, json.loads(row["anchor_extents"]))),
        flops=row["flops"],
        bytes_moved=row["bytes_moved"],
        op=row["op"],
        description="",
    )


def relatives_of(found: Iterable[RowMapping]) -> list[Relative]:
    """The relatives in the rows, of which there is one for each environment of a workload."""
    workloads: dict[str, Workload] = {}
    n_records: dict[str, dict[str, int]] = {}
    for row in found:
        key = row["key"]
        if key not in workloads:
            workloads[key] = relative_of(row)
        n_records.setdefault(key, {})[row["environment_key"]] = row["n_records"]
    return [Relative(workload, n_records[key]) for key, workload in workloads.items()]


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


def task_of(row: RowMapping, workloads: Mapping[str, Workload]) -> Task:
    """The task in the row."""
    return Task(name=row["name"], workload=workloads[row["workload_key"]], weight=row["weight"])


@_row_of("bcd_networks")
def network_of(row: RowMapping, tasks: tuple[Task, ...]) -> NetworkVersion:
    """The network in the row, with its tasks."""
    return NetworkVersion(
        name=row["name"],
        version=row["version"],
        source=row["source"],
        digest=row["digest"],
        shapes={name: tuple(map(int, shape)) for name, shape in _table_of(row["shapes"]).items()},
        tasks=tasks,
        created_at=row["created_at"],
    )


def record_row(record: TuningRecord, trace_digest: str) -> Row:
    """The row of `bcd_records`; the trace itself is not in it."""
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
        "created_at": record.created_at,
    }


@_row_of("bcd_records")
def record_of(row: RowMapping) -> tuple[TuningRecord, str]:
    """The record in the row, without its trace, and the digest of the trace."""
    record = TuningRecord(
        workload_key=row["workload_key"],
        environment_key=row["environment_key"],
        trace=None,
        sketch=row["sketch"],
        decisions=_decisions_of(row["decisions"]),
        run_times_s=_times_of(row["run_times_s"]),
        trials=row["trials"],
        depth=row["depth"],
        state=RecordState(row["state"]),
        run_id=row["run_id"],
        parent_id=row["parent_id"],
        untuned_s=row["untuned_s"],
        created_at=row["created_at"],
        reason=row["reason"],
    )
    return record, row["trace_digest"]


def _decisions_of(text: str) -> tuple[Decision, ...]:
    """As they were: tuples, which is what makes two equal. A lookup reads thousands."""
    return tuple((kind, tuple(value) if type(value) is list else value) for kind, value in json.loads(text))


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


def refutation_of(row: RowMapping) -> Refutation:
    """The refutation in the row."""
    return Refutation(
        record_id=row["record_id"],
        workload_key=row["workload_key"],
        cluster=row["cluster"],
        distance=math.inf if row["distance"] is None else row["distance"],
        environment_key=row["environment_key"],
        run_id=row["run_id"],
        ratio=math.inf if row["ratio"] is None else row["ratio"],
        created_at=row["created_at"],
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


@_row_of("bcd_cost_models")
def cost_model_of(row: RowMapping) -> tuple[CostModelSnapshot, str, str]:
    """The snapshot in the row, without its bytes, and the digests of booster and samples."""
    snapshot = CostModelSnapshot(
        target=row["target"],
        booster=b"",
        samples=b"",
        metadata=_table_of(row["metadata"]),
        created_at=row["created_at"],
    )
    return snapshot, row["booster_digest"], row["samples_digest"]


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


@_row_of("bcd_runs")
def run_of(row: RowMapping) -> RunSummary:
    """The run in the row."""
    return RunSummary(
        id=row["id"],
        network=row["network"],
        version=row["version"],
        environment_key=row["environment_key"],
        seed=int(row["seed"]),
        trials=row["trials"],
        tuning_s=row["tuning_s"],
        finished=row["finished"],
        created_at=row["created_at"],
        report=json.loads(row["report"]),
    )


def lease_of(row: RowMapping) -> Lease:
    """The lease in the row of `bcd_leases`."""
    return Lease(name=row["name"], holder=row["holder"], token=row["token"], expires_at=row["expires_at"])
