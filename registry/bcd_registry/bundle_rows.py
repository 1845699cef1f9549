"""The rows of a bundle: frozen values as plain JSON, and JSON as rows whose form and bounds are checked. Pure."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from .errors import CorruptBlob
from .model import KEY_SCHEME, Environment, Json, NetworkVersion, Task, TuningRecord, Workload, canonical_json
from .staleness import environment_key

FORMAT = 1
"""Version of the rows."""

_MAX_INTEGER = 2**31 - 1
_MAX_DESCRIPTION = 1 << 20
_HINT = "nothing was imported: ask for the file again, or export it anew"


def bad_bundle(reason: str) -> CorruptBlob:
    """The error of a bundle that cannot be used."""
    return CorruptBlob(f"the bundle cannot be used: {reason}", hint=_HINT)


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("it holds a character that cannot be printed")
    return text


Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Sketch = Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{64}|untuned)$")]
Line = Annotated[str, StringConstraints(max_length=1000), AfterValidator(_printable)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=1000), AfterValidator(_printable)]
Count = Annotated[int, Field(ge=0, le=_MAX_INTEGER)]
Positive = Annotated[int, Field(ge=1, le=_MAX_INTEGER)]
Index = Annotated[int, Field(ge=-_MAX_INTEGER, le=_MAX_INTEGER)]
Amount = Annotated[float, Field(ge=0, lt=1e30)]
Seconds = Annotated[float, Field(gt=0, lt=1e9)]
Moment = Annotated[float, Field(ge=0, lt=1e11)]
Extents = Annotated[tuple[Positive, ...], Field(max_length=10_000)]
Factors = Annotated[tuple[Positive, ...], Field(max_length=100)]


class _Row(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True)


class NetworkRow(_Row):
    """A version of a network, without its tasks."""

    name: Name
    version: Line
    source: Line
    digest: Digest
    shapes: dict[Name, Extents]
    created_at: Moment


class TaskRow(_Row):
    """A task, with the key of its workload."""

    name: Name
    workload: Digest
    weight: Positive


class WorkloadRow(_Row):
    """A workload: the fields of `Workload`."""

    key: Digest
    cluster: Digest
    anchor: Digest
    extents: Extents
    anchor_extents: Extents
    flops: Amount
    bytes_moved: Amount
    op: Line
    description: Annotated[str, StringConstraints(max_length=_MAX_DESCRIPTION)]


class EnvironmentRow(_Row):
    """An environment by its key."""

    key: Digest
    fields: dict[Name, Any]


class RecordRow(_Row):
    """A record, with the digest of its trace."""

    id: Digest
    workload: Digest
    environment: Digest
    trace: Digest
    sketch: Sketch
    decisions: Annotated[tuple[tuple[Name, Index | Factors], ...], Field(max_length=1000)]
    run_times_s: Annotated[tuple[Seconds, ...], Field(min_length=1, max_length=1000)]
    untuned_s: Seconds | None
    trials: Count
    depth: Count
    state: Literal["measured", "checked", "published"]
    run_id: Name
    parent: Digest | None
    created_at: Moment


class Rows(_Row):
    """Everything in `bundle.json`."""

    format: Literal[1]
    key_scheme: int
    network: NetworkRow
    tasks: Annotated[tuple[TaskRow, ...], Field(min_length=1)]
    workloads: tuple[WorkloadRow, ...]
    environments: tuple[EnvironmentRow, ...]
    records: tuple[RecordRow, ...]


def parse_rows(data: bytes) -> Rows:
    """The rows, in the one spelling that they can have: no name twice, no number that is none.

    Raises:
        CorruptBlob: They are of another form, format or key scheme.
    """
    try:
        value = json.loads(data)
        canonical = canonical_json(value).encode() == data
    except (ValueError, RecursionError) as error:
        raise bad_bundle(f"its rows are not JSON: {error}") from error
    if not canonical or not isinstance(value, dict):
        raise bad_bundle("its rows are not canonical JSON")
    if type(value.get("format")) is not int or value["format"] != FORMAT:
        raise bad_bundle(f"it has the format {value.get('format')!r:.40}, this release reads {FORMAT}")
    try:
        rows = Rows.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise bad_bundle(f"{place!r:.80}: {first['msg']}") from error
    if rows.key_scheme != KEY_SCHEME:
        raise bad_bundle(f"its keys follow scheme {rows.key_scheme}, those of this release {KEY_SCHEME}")
    return rows


def network_row(network: NetworkVersion) -> dict[str, Json]:
    """Without the tasks, and without the folders of this machine."""
    return {
        "name": network.name,
        "version": network.version,
        "source": network.source if network.source.startswith("package:") else re.split(r"[/\\]", network.source)[-1],
        "digest": network.digest,
        "shapes": {name: list(shape) for name, shape in network.shapes.items()},
        "created_at": network.created_at,
    }


def task_row(task: Task) -> dict[str, Json]:
    """The row of a task."""
    return {"name": task.name, "workload": task.workload.key, "weight": task.weight}


def workload_row(workload: Workload) -> dict[str, Json]:
    """The row of a workload."""
    return {field.name: getattr(workload, field.name) for field in dataclasses.fields(workload)}


def environment_rows(environments: Iterable[Environment]) -> list[dict[str, Json]]:
    """The rows of the environments, each once, in the order of their keys."""
    by_key = {environment_key(environment): environment for environment in environments}
    return [{"key": key, "fields": by_key[key].as_json()} for key in sorted(by_key)]


def record_row(record: TuningRecord, trace_digest: str) -> dict[str, Json]:
    """The row of a record; its trace lies in the blob of the digest."""
    return {
        "id": record.id,
        "workload": record.workload_key,
        "environment": record.environment_key,
        "trace": trace_digest,
        "sketch": record.sketch,
        "decisions": [[kind, value] for kind, value in record.decisions],
        "run_times_s": record.run_times_s,
        "untuned_s": record.untuned_s,
        "trials": record.trials,
        "depth": record.depth,
        "state": record.state.value,
        "run_id": record.run_id,
        "parent": record.parent_id,
        "created_at": record.created_at,
    }
