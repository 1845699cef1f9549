"""A network version and its records as one portable file: bytes <-> values, and nothing is believed before it verifies. No I/O.

A bundle is a zip of stored members: `bundle.json`, its rows as canonical JSON, and `blobs/DIGEST`, the traces as a registry
stores them. Its members are read in memory by their exact names: none is ever extracted, inflated by zip or unpickled.
"""

from __future__ import annotations

import io
import json
import re
import struct
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import zstandard

from .blobs.digests import blob_digest, verified
from .bundle_rows import (
    FORMAT,
    RecordRow,
    Rows,
    bad_bundle,
    environment_rows,
    network_row,
    parse_rows,
    record_row,
    task_row,
    workload_row,
)
from .errors import ConfigError, CorruptBlob
from .model import (
    KEY_SCHEME,
    Environment,
    Json,
    NetworkVersion,
    RecordState,
    Task,
    TuningRecord,
    Workload,
    canonical_json,
    digest_of,
)
from .staleness import environment_key
from .traces import pack_trace, unpack_trace

MAX_BUNDLE_BYTES = 64 << 20
"""Largest bundle, and most that its traces may have together: one of a network with a hundred tasks has about a megabyte."""

MAX_ROWS_BYTES = 32 << 20
"""Largest `bundle.json`."""

MAX_TRACE_BYTES = 1 << 20
"""Largest trace, compressed or not: a real one has some 10 KB."""

MAX_MEMBERS = 10_000
"""Most members of a bundle."""

_ROWS = "bundle.json"
_BLOBS = "blobs/"
_BLOB = re.compile(r"blobs/[0-9a-f]{64}")
_MOMENT = (1980, 1, 1, 0, 0, 0)
_UNIX = 3
_END = struct.Struct("<4s4H2LH")
_END_MARK, _ZIP64_MARK, _ZIP64_BYTES = b"PK\x05\x06", b"PK\x06\x07", 20
_DIRECTORY_ENTRY_BYTES = 128
_TILE = "SamplePerfectTile"
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Bundle:
    """What a bundle holds: a version of a network, and records of its tasks with their traces.

    Attributes:
        environments: Those that the records were measured in, in the order of their keys.
        records: In the order of their ids; a parent is among them or not named.
    """

    network: NetworkVersion
    environments: tuple[Environment, ...]
    records: tuple[TuningRecord, ...]

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """Those of the tasks, each once, in the order of their keys."""
        by_key = {task.workload.key: task.workload for task in self.network.tasks}
        return tuple(by_key[key] for key in sorted(by_key))


def pack_bundle(bundle: Bundle) -> bytes:
    """The bytes of the file, the same for equal values.

    Raises:
        ConfigError: It would not be read again: it is too large, or not whole.
    """
    records = sorted(bundle.records, key=lambda record: record.id)
    traces = [pack_trace(record.workload_key, record.trace) for record in records]
    blobs = {blob_digest(data): data for data in traces}
    rows = {
        "format": FORMAT,
        "key_scheme": KEY_SCHEME,
        "network": network_row(bundle.network),
        "tasks": [task_row(task) for task in bundle.network.tasks],
        "workloads": [workload_row(workload) for workload in bundle.workloads],
        "environments": environment_rows(bundle.environments),
        "records": [record_row(record, blob_digest(data)) for record, data in zip(records, traces, strict=True)],
    }
    members = {_ROWS: canonical_json(rows).encode(), **{_BLOBS + digest: blobs[digest] for digest in sorted(blobs)}}
    packed = _zipped(members)
    try:
        read_bundle(packed)
    except CorruptBlob as error:
        raise ConfigError(
            f"it would not be read again: {error.message}", hint="export a JSONDatabase folder instead"
        ) from error
    return packed


def read_bundle(data: bytes) -> Bundle:
    """The bundle in the bytes: its form, bounds, digests, keys and references verified.

    What no row can prove is not verified: what a trace does, that its latency is true, and a workload's cluster and anchor.

    Raises:
        CorruptBlob: It is not a bundle of this format, it is damaged, or it contradicts itself.
    """
    members = _members(data)
    rows = parse_rows(members.pop(_ROWS))
    blobs = _blobs_of(members)
    workloads, environments = _workloads_of(rows), _environments_of(rows)
    network = _network_of(rows, workloads)
    records = _records_of(rows, workloads, environments, _traces_of(rows, blobs))
    return Bundle(
        network,
        tuple(environments[key] for key in sorted(environments)),
        tuple(records[record_id] for record_id in sorted(records)),
    )


def _zipped(members: Mapping[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name, _MOMENT)
            info.create_system, info.external_attr = _UNIX, 0o600 << 16
            archive.writestr(info, content)
    return stream.getvalue()


def _members(data: bytes) -> dict[str, bytes]:
    """Every member by its name, each of them expected and within its bounds."""
    _check_directory(data)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            listed = archive.infolist()
            _check_listed(listed, len(data))
            return {info.filename: archive.read(info) for info in listed}
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, OSError, EOFError, struct.error) as error:
        raise bad_bundle(f"it is no whole zip file: {error}") from error


def _check_directory(data: bytes) -> None:
    """Bounds of the file and of its directory, before anything reads that; no comment, no zip64."""
    if len(data) > MAX_BUNDLE_BYTES:
        raise bad_bundle(f"it has more than {MAX_BUNDLE_BYTES >> 20} MiB")
    end = data[-_END.size :]
    if len(end) < _END.size or not end.startswith(_END_MARK):
        raise bad_bundle("it is no whole zip file: its end is missing")
    *_, n_members, directory_bytes, _, n_comment = _END.unpack(end)
    zip64 = data[-_END.size - _ZIP64_BYTES : -_END.size].startswith(_ZIP64_MARK)
    if n_members > MAX_MEMBERS or directory_bytes > MAX_MEMBERS * _DIRECTORY_ENTRY_BYTES or zip64:
        raise bad_bundle(f"it has more than {MAX_MEMBERS} members")
    if n_comment:
        raise bad_bundle("its zip file has a comment")


def _check_listed(listed: Sequence[zipfile.ZipInfo], n_bytes: int) -> None:
    names = [info.orig_filename for info in listed]
    if repeated := _repeated(names):
        raise bad_bundle(f"its member {repeated!r:.80} is there twice")
    if _ROWS not in names:
        raise bad_bundle(f"it has no {_ROWS}")
    for info in listed:
        _check_member(info)
    if sum(info.file_size for info in listed) > n_bytes:
        raise bad_bundle("its members state more bytes than the file has")


def _check_member(info: zipfile.ZipInfo) -> None:
    name = info.orig_filename
    if name != _ROWS and _BLOB.fullmatch(name) is None:
        raise bad_bundle(f"it has a member {name!r:.80}, which no bundle has")
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits or info.extra or info.comment:
        raise bad_bundle(f"its member {name:.18} is compressed, encrypted or of another form")
    limit = MAX_ROWS_BYTES if name == _ROWS else MAX_TRACE_BYTES
    if info.file_size > limit or info.file_size != info.compress_size:
        raise bad_bundle(f"its member {name:.18} states more than {limit >> 20} MiB, or two sizes")


def _blobs_of(members: Mapping[str, bytes]) -> dict[str, bytes]:
    """The blobs by their digests."""
    named = {name.removeprefix(_BLOBS): content for name, content in members.items()}
    try:
        return {digest: verified(content, digest) for digest, content in named.items()}
    except CorruptBlob as error:
        raise bad_bundle(error.message) from error


def _workloads_of(rows: Rows) -> dict[str, Workload]:
    for row in rows.workloads:
        if not _is_canonical(row.description):
            raise bad_bundle(f"the description of workload {row.key[:12]} is not canonical JSON")
        if row.key != digest_of(str(KEY_SCHEME), "workload", row.description):
            raise bad_bundle(f"the key of workload {row.key[:12]} does not follow from its description")
    return _by_key("workload", [(row.key, Workload(**row.model_dump())) for row in rows.workloads])


def _environments_of(rows: Rows) -> dict[str, Environment]:
    found = [(row.key, Environment(row.fields)) for row in rows.environments]
    for key, environment in found:
        if key != environment_key(environment):
            raise bad_bundle(f"the key of environment {key[:12]} does not follow from its fields")
    return _by_key("environment", found)


def _network_of(rows: Rows, workloads: Mapping[str, Workload]) -> NetworkVersion:
    found = [(row.workload, Task(row.name, _named("workload", row.workload, workloads), row.weight)) for row in rows.tasks]
    tasks = _by_key("task of workload", found)
    if idle := workloads.keys() - tasks.keys():
        raise bad_bundle(f"its workload {min(idle)[:12]} is of none of its tasks")
    return NetworkVersion(**rows.network.model_dump(), tasks=tuple(tasks.values()))


def _traces_of(rows: Rows, blobs: Mapping[str, bytes]) -> dict[str, Json]:
    """The trace of each record by the record's id."""
    if unnamed := blobs.keys() - {row.trace for row in rows.records}:
        raise bad_bundle(f"its blob {min(unnamed)[:12]} is of none of its records")
    left, traces = MAX_BUNDLE_BYTES, {}
    for row in rows.records:
        data = _named("blob", row.trace, blobs)
        left -= _stated_bytes(data)
        if left < 0:
            raise bad_bundle(f"its traces state more than {MAX_BUNDLE_BYTES >> 20} MiB")
        try:
            traces[row.id] = unpack_trace(data, row.workload)
        except CorruptBlob as error:
            raise bad_bundle(error.message) from error
    return traces


def _stated_bytes(data: bytes) -> int:
    try:
        stated = int(zstandard.frame_content_size(data))
    except zstandard.ZstdError as error:
        raise bad_bundle(f"a trace cannot be decompressed: {error}") from error
    if not 0 <= stated <= MAX_TRACE_BYTES:
        raise bad_bundle(f"a trace states more than {MAX_TRACE_BYTES >> 20} MiB, or nothing")
    return stated


def _records_of(
    rows: Rows, workloads: Mapping[str, Workload], environments: Mapping[str, Environment], traces: Mapping[str, Json]
) -> dict[str, TuningRecord]:
    found = []
    for row in rows.records:
        _named("workload", row.workload, workloads)
        _named("environment", row.environment, environments)
        record = _record_of(row, traces[row.id])
        if record.id != row.id:
            raise bad_bundle(f"the id of record {row.id[:12]} does not follow from its fields")
        found.append((row.id, record))
    records = _by_key("record", found)
    _check_parents({record_id: record.parent_id for record_id, record in records.items()})
    return records


def _record_of(row: RecordRow, trace: Json) -> TuningRecord:
    if any(isinstance(value, tuple) != (kind == _TILE) for kind, value in row.decisions):
        raise bad_bundle(f"record {row.id[:12]} decides what no schedule does")
    return TuningRecord(
        workload_key=row.workload,
        environment_key=row.environment,
        trace=trace,
        sketch=row.sketch,
        decisions=row.decisions,
        run_times_s=row.run_times_s,
        trials=row.trials,
        depth=row.depth,
        state=RecordState(row.state),
        run_id=row.run_id,
        parent_id=row.parent,
        untuned_s=row.untuned_s,
        created_at=row.created_at,
    )


def _check_parents(parents: Mapping[str, str | None]) -> None:
    """Each is there, and none is its own ancestor."""
    settled: set[str] = set()
    for start in parents:
        line: set[str] = set()
        current: str | None = start
        while current is not None and current not in settled:
            if current in line:
                raise bad_bundle(f"record {current[:12]} is its own ancestor")
            line.add(current)
            current = _named("record", current, parents)
        settled |= line


def _is_canonical(text: str) -> bool:
    try:
        return canonical_json(json.loads(text)) == text
    except (ValueError, RecursionError):
        return False


def _by_key(what: str, pairs: Sequence[tuple[str, _T]]) -> dict[str, _T]:
    if repeated := _repeated(key for key, _ in pairs):
        raise bad_bundle(f"its {what} {repeated[:12]} is there twice")
    return dict(pairs)


def _named(what: str, key: str, found: Mapping[str, _T]) -> _T:
    if key not in found:
        raise bad_bundle(f"it names the {what} {key[:12]}, which is not in it")
    return found[key]


def _repeated(names: Iterable[str]) -> str:
    """One that is there twice; empty when there is none."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return ""
