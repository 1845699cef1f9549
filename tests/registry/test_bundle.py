"""Bundles: bytes <-> values, and bytes that nobody should believe."""

from __future__ import annotations

import copy
import dataclasses
import io
import json
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from bcd_registry import bundle as module
from bcd_registry.blobs.digests import blob_digest
from bcd_registry.bundle import MAX_BUNDLE_BYTES, MAX_MEMBERS, MAX_TRACE_BYTES, Bundle, pack_bundle, read_bundle
from bcd_registry.errors import ConfigError, CorruptBlob
from bcd_registry.model import KEY_SCHEME, Environment, RecordState, TuningRecord, Workload, canonical_json, digest_of
from bcd_registry.staleness import environment_key
from bcd_registry.testing.values import ENVIRONMENT, TRACE, hex_of, make_environment, make_network, make_record, make_workload
from bcd_registry.traces import pack_trace

Rows = dict[str, Any]


def true_workload(name: str, **changes: Any) -> Workload:
    """A workload whose key follows from its description."""
    description = canonical_json({"name": name})
    key = digest_of(str(KEY_SCHEME), "workload", description)
    return dataclasses.replace(make_workload(name, **changes), key=key, description=description)


CONV, MATMUL = true_workload("conv"), true_workload("matmul", extents=(8, 8))
OTHER = make_environment(tvm="0.26.0", cpu_model=None)
KEY, OTHER_KEY = environment_key(ENVIRONMENT), environment_key(OTHER)


def make_bundle() -> Bundle:
    """Two tasks, two environments, three records of which one goes back to another."""
    parent = make_record(CONV, KEY, state=RecordState.PUBLISHED)
    child = make_record(
        MATMUL, KEY, state=RecordState.PUBLISHED, parent_id=parent.id, trace=[[], [[0, [2, 4]]]], untuned_s=None
    )
    older = make_record(CONV, OTHER_KEY, state=RecordState.MEASURED, sketch="untuned", decisions=())
    records = tuple(sorted((parent, child, older), key=lambda record: record.id))
    environments = tuple(sorted((ENVIRONMENT, OTHER), key=environment_key))
    return Bundle(make_network("ocr", "v1", (CONV, MATMUL)), environments, records)


BUNDLE = make_bundle()
DATA = pack_bundle(BUNDLE)


def members_of(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def zipped(members: Sequence[tuple[str, bytes]], compression: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name, content in members:
            archive.writestr(zipfile.ZipInfo(name), content, compress_type=compression)
    return stream.getvalue()


def rows_of(data: bytes) -> Rows:
    rows: Rows = json.loads(members_of(data)["bundle.json"])
    return rows


def with_rows(rows: object, blobs: Mapping[str, bytes] | None = None) -> bytes:
    """The bundle with other rows, spelt as they must be, and perhaps with other blobs."""
    text = canonical_json(rows).encode()
    kept = {name: content for name, content in members_of(DATA).items() if name != "bundle.json"} if blobs is None else blobs
    return zipped([("bundle.json", text), *kept.items()])


def changed(change: Callable[[Rows], object]) -> bytes:
    rows = rows_of(DATA)
    change(rows)
    return with_rows(rows)


def identified(record: TuningRecord) -> Rows:
    """The row of a record whose id follows from it."""
    return next(row for row in rows_of(DATA)["records"] if row["id"] == record.id)


def test_reads_back_what_was_packed() -> None:
    assert read_bundle(DATA) == BUNDLE
    assert BUNDLE.workloads == tuple(sorted((CONV, MATMUL), key=lambda workload: workload.key))


def test_equal_values_give_equal_bytes_whatever_their_order() -> None:
    shuffled = dataclasses.replace(BUNDLE, environments=BUNDLE.environments[::-1], records=BUNDLE.records[::-1])
    assert pack_bundle(shuffled) == DATA == pack_bundle(read_bundle(DATA))


def test_members_are_stored_under_fixed_names_and_moments() -> None:
    with zipfile.ZipFile(io.BytesIO(DATA)) as archive:
        listed = archive.infolist()
    digests = sorted({blob_digest(pack_trace(record.workload_key, record.trace)) for record in BUNDLE.records})
    assert [info.filename for info in listed] == ["bundle.json", *(f"blobs/{digest}" for digest in digests)]
    assert {info.date_time for info in listed} == {(1980, 1, 1, 0, 0, 0)}
    assert {info.compress_type for info in listed} == {zipfile.ZIP_STORED}


@pytest.mark.parametrize(
    ("source", "kept"),
    [
        ("/home/somebody/nets/net.onnx", "net.onnx"),
        ("C:\\nets\\net.onnx", "net.onnx"),
        ("package:some_package/models/net.onnx", "package:some_package/models/net.onnx"),
    ],
)
def test_no_folder_of_this_machine_goes_into_a_bundle(source: str, kept: str) -> None:
    packed = pack_bundle(dataclasses.replace(BUNDLE, network=dataclasses.replace(BUNDLE.network, source=source)))
    assert read_bundle(packed).network.source == kept
    assert b"somebody" not in packed


def test_what_would_not_be_read_again_is_not_packed() -> None:
    foreign = dataclasses.replace(BUNDLE, network=make_network("ocr", "v1", (MATMUL,)))
    with pytest.raises(ConfigError, match=r"not be read again: .* names the workload"):
        pack_bundle(foreign)


def cut(n: int) -> bytes:
    return DATA[:n]


def patched(at: int, fmt: str, value: int) -> bytes:
    """The first entry of the directory with another number in it."""
    data = bytearray(DATA)
    struct.pack_into(fmt, data, DATA.index(b"PK\x01\x02") + at, value)
    return bytes(data)


def end_patched(at: int, fmt: str, value: int) -> bytes:
    data = bytearray(DATA)
    struct.pack_into(fmt, data, len(DATA) - 22 + at, value)
    return bytes(data)


def bomb(n_bytes: int) -> bytes:
    return zstandard.ZstdCompressor(level=19).compress(b" " * n_bytes)


def with_trace(blob: bytes) -> bytes:
    """The trace of one record is another blob, whose digest is right."""
    rows, blobs = rows_of(DATA), {name: content for name, content in members_of(DATA).items() if name != "bundle.json"}
    row = identified(next(record for record in BUNDLE.records if record.workload_key == MATMUL.key))
    for record in rows["records"]:
        if record["id"] == row["id"]:
            record["trace"] = blob_digest(blob)
    del blobs[f"blobs/{row['trace']}"]
    return with_rows(rows, {**blobs, f"blobs/{blob_digest(blob)}": blob})


MEMBERS = list(members_of(DATA).items())
FIRST_BLOB = MEMBERS[1][0]

DAMAGED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "its end is missing"),
    "no zip": (b"x" * 1000, "its end is missing"),
    "cut": (cut(len(DATA) - 1), "its end is missing"),
    "half": (cut(len(DATA) // 2), "its end is missing"),
    "comment": (end_patched(20, "<H", 1), "a comment"),
    "many members": (end_patched(10, "<H", MAX_MEMBERS + 1), "more than 10000 members"),
    "long directory": (end_patched(12, "<L", 2**31), "more than 10000 members"),
    "zip64": (DATA[:-22] + b"PK\x06\x07" + b"\0" * 16 + DATA[-22:], "more than 10000 members"),
    "absolute name": (zipped([*MEMBERS, ("/etc/passwd", b"x")]), "'/etc/passwd', which no bundle has"),
    "name out of the folder": (zipped([*MEMBERS, ("../x", b"x")]), "'../x', which no bundle has"),
    "name out of blobs": (zipped([*MEMBERS, ("blobs/../bundle.json", b"x")]), "which no bundle has"),
    "name with a line break": (zipped([*MEMBERS, (FIRST_BLOB + "\n", b"x")]), "which no bundle has"),
    "folder": (zipped([*MEMBERS, ("blobs/", b"")]), "which no bundle has"),
    "no rows": (zipped(MEMBERS[1:]), "no bundle.json"),
    "compressed": (zipped(MEMBERS, zipfile.ZIP_DEFLATED), "is compressed"),
    "other version": (patched(6, "<H", 99), "no whole zip file"),
    "encrypted": (patched(8, "<H", 1), "encrypted"),
    "huge member": (patched(24, "<L", 2**31), "states more than 32 MiB"),
    "two sizes": (patched(24, "<L", 1), "or two sizes"),
    "no such place": (patched(42, "<L", 2**31), "no whole zip file"),
    "checksum": (patched(16, "<L", 7), "no whole zip file"),
    "other bytes": (zipped([*MEMBERS[:-1], (MEMBERS[-1][0], b"other")]), "is damaged"),
    "no blob": (zipped(MEMBERS[:-1]), "names the blob"),
    "unnamed blob": (zipped([*MEMBERS, (f"blobs/{blob_digest(b'x')}", b"x")]), "is of none of its records"),
    "rows cut": (zipped([("bundle.json", MEMBERS[0][1][:-20]), *MEMBERS[1:]]), "not JSON"),
    "rows with spaces": (zipped([("bundle.json", json.dumps(rows_of(DATA)).encode()), *MEMBERS[1:]]), "not canonical"),
    "no number": (zipped([("bundle.json", MEMBERS[0][1].replace(b"0.002", b"NaN")), *MEMBERS[1:]]), "not JSON"),
    "deep rows": (zipped([("bundle.json", b"[" * 100_000), *MEMBERS[1:]]), "not JSON"),
    "rows in a list": (with_rows([rows_of(DATA)]), "not canonical"),
    "next format": (changed(lambda rows: rows.update(format=2)), "format 2, this release reads 1"),
    "no format": (changed(lambda rows: rows.pop("format")), "format None"),
    "next scheme": (changed(lambda rows: rows.update(key_scheme=KEY_SCHEME + 1)), "keys follow scheme"),
    "more": (changed(lambda rows: rows.update(more=1)), "more"),
    "no tasks": (changed(lambda rows: rows.update(tasks=[])), "tasks"),
    "key of a workload": (changed(lambda rows: rows["workloads"][0].update(description="{}")), "does not follow"),
    "description": (changed(lambda rows: rows["workloads"][0].update(description="{ }")), "not canonical JSON"),
    "key of an environment": (changed(lambda rows: rows["environments"][0]["fields"].update(cores=64)), "does not follow"),
    "id of a record": (changed(lambda rows: rows["records"][0].update(run_id="other")), "does not follow"),
    "decision": (changed(lambda rows: rows["records"][0].update(decisions=[["SampleCategorical", [2, 4]]])), "no schedule"),
    "state": (changed(lambda rows: rows["records"][0].update(state="quarantined")), "state"),
    "twice the workload": (changed(lambda rows: rows["workloads"].append(rows["workloads"][0])), "is there twice"),
    "twice the record": (changed(lambda rows: rows["records"].append(rows["records"][0])), "is there twice"),
    "twice the task": (changed(lambda rows: rows["tasks"].append(rows["tasks"][0])), "is there twice"),
    "idle workload": (changed(lambda rows: rows["tasks"].pop()), "is of none of its tasks"),
    "missing workload": (changed(lambda rows: rows["workloads"].pop()), "names the workload"),
    "missing environment": (changed(lambda rows: rows["environments"].clear()), "names the environment"),
    "missing parent": (changed(lambda rows: rows["records"][0].update(parent=hex_of("nobody"))), "names the record"),
    "trace of another": (with_trace(pack_trace(CONV.key, [[], []])), "another workload"),
    "trace that is none": (with_trace(b"x"), "cannot be decompressed"),
    "bomb": (with_trace(bomb(MAX_TRACE_BYTES + 1)), "states more than 1 MiB"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_bundle_is_refused_in_one_line(name: str) -> None:
    data, message = DAMAGED[name]
    with pytest.raises(CorruptBlob, match=r"^the bundle cannot be used: ") as caught:
        read_bundle(data)
    assert message in caught.value.message
    assert len(caught.value.message.splitlines()) == 1
    assert len(caught.value.message) < 300
    assert "nothing was imported" in caught.value.hint


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_member_that_is_there_twice() -> None:
    with pytest.raises(CorruptBlob, match="is there twice"):
        read_bundle(zipped([*MEMBERS, MEMBERS[0]]))


def test_a_file_that_is_too_large_is_not_looked_into() -> None:
    with pytest.raises(CorruptBlob, match="more than 64 MiB"):
        read_bundle(b"\0" * (MAX_BUNDLE_BYTES + 1))


def test_traces_that_are_too_large_together(monkeypatch: pytest.MonkeyPatch) -> None:
    data = with_trace(pack_trace(MATMUL.key, [[], [[0, "x" * 2 * len(DATA)]]]))
    monkeypatch.setattr(module, "MAX_BUNDLE_BYTES", len(data))
    with pytest.raises(CorruptBlob, match="its traces state more"):
        read_bundle(data)


def test_a_record_may_not_be_its_own_ancestor() -> None:
    ids = [row["id"] for row in rows_of(DATA)["records"]]
    parents = dict(zip(ids, [*ids[1:], ids[0]], strict=True))

    def close_the_ring(rows: Rows) -> None:
        for row in rows["records"]:
            row["parent"] = parents[row["id"]]

    with pytest.raises(CorruptBlob, match="its own ancestor"):
        read_bundle(changed(close_the_ring))


def paths_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, child in children:
        yield from paths_in(child, (*path, name))


def replaced(rows: Rows, path: tuple[Any, ...], value: object) -> object:
    if not path:
        return value
    rows = copy.deepcopy(rows)
    parent: Any = rows
    for name in path[:-1]:
        parent = parent[name]
    parent[path[-1]] = value
    return rows


PATHS = list(paths_in(rows_of(DATA)))
VALUES: list[Any] = [None, True, -1, 0, 2**70, 1.5, "", "x", "0" * 64, "\ud800", [], {}, [[]], {"": None}, [1, "x"]]


def refused_or_whole(data: bytes) -> Bundle | None:
    """What was read, if anything: then it can be packed and read again."""
    message, found = "", None
    try:
        found = read_bundle(data)
    except CorruptBlob as error:
        message = error.message
    assert len(message.splitlines()) == (found is None)
    assert found is None or read_bundle(pack_bundle(found)) == found
    return found


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_another_type_at_any_place_is_refused_or_means_what_it_says(value: object) -> None:
    rows = rows_of(DATA)
    for path in PATHS:
        found = refused_or_whole(with_rows(replaced(rows, path, value)))
        assert found is None or path[0] in ("network", "records", "workloads", "tasks", "environments")


@settings(max_examples=300)
@given(flips=st.lists(st.tuples(st.integers(0, len(DATA) - 1), st.integers(1, 255)), max_size=4), n=st.integers(0, len(DATA)))
def test_no_byte_can_be_changed_unnoticed(flips: list[tuple[int, int]], n: int) -> None:
    data = bytearray(DATA)
    for place, bits in flips:
        data[place] ^= bits
    for mutated in (bytes(data), bytes(data[:n])):
        found = refused_or_whole(mutated)
        assert found in (None, BUNDLE)


@settings(max_examples=300)
@given(
    path=st.sampled_from(PATHS),
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=4,
    ),
)
def test_no_field_can_be_changed_to_what_it_cannot_be(path: tuple[Any, ...], value: object) -> None:
    refused_or_whole(with_rows(replaced(rows_of(DATA), path, value)))


@given(st.binary(max_size=300))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    for mutated in (data, data + DATA[-22:], DATA + data):
        assert refused_or_whole(mutated) in (None, BUNDLE)


def test_an_environment_is_read_as_it_is() -> None:
    assert set(map(environment_key, read_bundle(DATA).environments)) == {KEY, OTHER_KEY}
    assert Environment(dict(OTHER.fields)) in read_bundle(DATA).environments
    assert TRACE in [record.trace for record in read_bundle(DATA).records]
