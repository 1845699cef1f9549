"""The formats that the registry reads: what mutated bytes are made of, how they are read, what must hold of what is taken."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import sqlite3
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bcd_registry.blobs.digests import blob_digest
from bcd_registry.blobs.local import LocalBlobs
from bcd_registry.blobs.memory import MemoryBlobs
from bcd_registry.bundle import Bundle, pack_bundle, read_bundle
from bcd_registry.catalog.sql import SqlCatalog
from bcd_registry.errors import BcdError, CorruptBlob
from bcd_registry.model import Grade, Prior, RecordState, TuningRecord, Workload, canonical_json, digest_of
from bcd_registry.registry import Registry
from bcd_registry.settings import load_settings
from bcd_registry.spool import Results, Spool, publish_spool
from bcd_registry.staleness import environment_key
from bcd_registry.testing.values import (
    ENVIRONMENT,
    hex_of,
    make_network,
    make_record,
    make_refutation,
    make_run,
    make_snapshot,
    make_workload,
)

from .mutations import Generator, mutate_archive, mutate_bytes, mutate_json, one_of

SETTINGS = """
mlflow_tracking_uri = "http://mlflow:5000"
workers = 3
database_url = "postgresql+psycopg://user@host/database"
blobs_url = "s3://bucket/prefix"
s3_endpoint_url = "http://127.0.0.1:8333"
home = "~/registry"

[defaults]
trials = 16
time_budget_s = 600

[staleness]
max_age = "90d"
on_version = "prior"

[networks.v1]
name = "ocr"
source = "models/v1.onnx"
shapes = { input = [1, 3, 48, 192] }
dtypes = { input = "float32" }
"""


_TOML_VALUES = (
    *("0", "-1", "1", "9" * 5000, "0x" + "f" * 5000, "1e400", "nan", "-inf", "true", "1979-05-27", "{}", "[]", "[[1, 2], [3]]"),
    *("''", "'x'", "'\\'", "'~nobody/x'", "'~'", "'../../etc/passwd'", '"\\u0000"', '"\\u001b[31m"'),
    *("[" * 5000 + "]" * 5000, "{a = " * 500 + "1" + "}" * 500, f"'{'x' * 100_000}'", f"[{'1,' * 50_000}]"),
    *("'postgresql://u:secret@h:99999999/d'", "'sqlite:///'", "'s3://'", "'http://[::1'", "'90d'", "'9e9d'", f"'{'9' * 400}d'"),
    *("'''\n" + " " * 100_000 + "\n'''", "'''\n" + "[" * 100_000 + "\n'''"),
)


class Unverified(AssertionError):
    """Something was taken that does not hold what it must."""


@dataclass(frozen=True, slots=True)
class Format:
    """One kind of bytes.

    Attributes:
        mutate: Hostile bytes, drawn from the generator.
        read: Reads them as the product does, and verifies what was taken. It raises `BcdError` when they were refused, and
            `Unverified` when something was taken that must not be.
    """

    name: str
    mutate: Callable[[Generator], bytes]
    read: Callable[[bytes], None]


def require(holds: bool, otherwise: str) -> None:
    """Raise `Unverified` unless it holds."""
    if not holds:
        raise Unverified(otherwise)


def settings_format(folder: Path) -> Format:
    """`bcd-registry.toml`, as a file."""
    path, seed = folder / "bcd-registry.toml", SETTINGS.encode()

    def read(data: bytes) -> None:
        path.write_bytes(data)
        try:
            settings = load_settings(config=path)
        except BcdError as error:
            require("\n" not in error.message and len(error.message) < 1000, "an error has one line")
            raise
        require(all(network.trials > 0 for network in settings.networks.values()), "trials are positive")
        require(settings.local_cache_mib >= 0, "a size is not negative")

    def mutate(rng: Generator) -> bytes:
        return mutate_bytes(rng, seed, [seed]) if rng.random() < 0.5 else _with_other_value(rng)

    return Format("settings", mutate, read)


def _with_other_value(rng: Generator) -> bytes:
    """The settings with one value replaced by a hostile one, well written."""
    lines = SETTINGS.splitlines()
    place = one_of(rng, [i for i, line in enumerate(lines) if "=" in line])
    name = lines[place].partition("=")[0]
    lines[place] = f"{name}= {one_of(rng, _TOML_VALUES)}"
    return "\n".join(lines).encode(errors="surrogatepass")


def blob_format(folder: Path) -> Format:
    """A file of the local blob store: no byte of it may differ."""
    blobs = LocalBlobs(folder)
    data = bytes(range(256)) * 8
    digest = blobs.put(data)
    [path] = (p for p in folder.rglob("*") if p.is_file() and p.read_bytes() == data)

    def read(mutated: bytes) -> None:
        path.write_bytes(mutated)
        require(blobs.get(digest) == data, "what is read has its digest")

    return Format("blob", lambda rng: mutate_bytes(rng, data, [data]), read)


def bundle_format(folder: Path) -> Format:
    """A bundle file, its zip container, its rows and its traces; digests are made to fit now and then, as an enemy would."""
    seed = pack_bundle(_bundle())

    def mutate(rng: Generator) -> bytes:
        how = rng.random()
        if how < 0.3:
            return mutate_bytes(rng, seed, [seed])
        return mutate_archive(rng, seed, [seed]) if how < 0.6 else _with_mutated_rows(rng, seed)

    def read(data: bytes) -> None:
        bundle = read_bundle(data)
        for workload in bundle.workloads:
            require(workload.key == digest_of("1", "workload", workload.description), "a key follows from its description")
        require(read_bundle(pack_bundle(bundle)) == bundle, "what was read can be written and read again")

    return Format("bundle", mutate, read)


def spool_format(folder: Path) -> Format:
    """A file of a spool under the digest of its own bytes, given to a registry."""
    template, root = _template(folder), folder / "spool"
    seeds = [path.read_bytes() for path in (Spool(folder / "seeds", "run").write(r) for r in _results())]
    values = [json.loads(seed) for seed in seeds]

    def mutate(rng: Generator) -> bytes:
        if rng.random() < 0.3:
            return mutate_bytes(rng, one_of(rng, seeds), seeds)
        return mutate_json(rng, one_of(rng, values))

    def read(data: bytes) -> None:
        path = root / "run" / f"000001-{blob_digest(data)}.v1.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        with _registry(folder, template) as registry:
            published = publish_spool(registry, root)
            _require_sound(registry)
        if published.n_files:
            require(not path.exists(), "what was given is removed")
            return
        [aside] = path.parent.glob("*.v1.json.*")
        require(aside.read_bytes() == data, "what was not given is still there")
        aside.unlink()
        raise CorruptBlob("set aside")

    return Format("spool", mutate, read)


def catalog_format(folder: Path) -> Format:
    """A value of a row: JSON, a state, a number or a digest that somebody edited."""
    template = _template(folder)
    cells = _cells(template, folder)

    def mutate(rng: Generator) -> bytes:
        table, column, rowid, value = one_of(rng, cells)
        return json.dumps([table, column, rowid, *_other_value(rng, value)]).encode()

    def read(data: bytes) -> None:
        table, column, rowid, kind, value = json.loads(data)
        path = folder / "catalog.db"
        path.write_bytes(template)
        if not _update(path, table, column, rowid, kind, value):
            raise CorruptBlob("the database refuses it")
        with SqlCatalog.open_file(path) as catalog:
            refused = _use(Registry(catalog, _BLOBS))
        _remove(path)
        if refused:
            raise refused[0]

    return Format("catalog", mutate, read)


_STRANGE = (("null", None), ("integer", -1), ("integer", 2**62), ("real", 1e308), ("blob", "ff"), ("text", "78"))
_OTHERS = (("integer", 0), ("integer", -(2**62)), ("real", -1.0), ("text", ""), ("text", "6e616e"))
_BLOBS = MemoryBlobs()
_WORKLOADS = tuple(make_workload(name, cluster="c", anchor="a") for name in ("one", "two", "three"))


def _bundle() -> Bundle:
    workloads = tuple(dataclasses.replace(w, key=digest_of("1", "workload", w.description)) for w in _WORKLOADS)
    records = [
        make_record(workloads[0], _environment_key(), state=RecordState.PUBLISHED),
        make_record(workloads[1], _environment_key(), run_id="run-2"),
    ]
    records.append(make_record(workloads[1], _environment_key(), run_id="run-3", parent_id=records[0].id))
    ordered = sorted(records, key=lambda record: record.id)
    return Bundle(make_network("ocr", "1", workloads), (ENVIRONMENT,), tuple(ordered))


def _environment_key() -> str:
    return environment_key(ENVIRONMENT)


def _with_mutated_rows(rng: Generator, seed: bytes) -> bytes:
    """The bundle with one changed value, and the keys and ids that follow from it corrected half of the time."""
    with zipfile.ZipFile(io.BytesIO(seed)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["bundle.json"] = mutate_json(rng, json.loads(members["bundle.json"]))
    if rng.random() < 0.5:
        with contextlib.suppress(ValueError, RecursionError):
            members["bundle.json"] = canonical_json(json.loads(members["bundle.json"])).encode()
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content)
    return stream.getvalue()


def _results() -> Iterator[Results]:
    """What a run spools: priors, results, a model, a run."""
    key = _environment_key()
    kept = make_record(_WORKLOADS[0], key)
    published = make_record(_WORKLOADS[1], key, run_id="run-2", state=RecordState.CHECKED, parent_id=kept.id)
    network = make_network("ocr", "2", _WORKLOADS)
    yield Results(ENVIRONMENT, _WORKLOADS, network, kept=(kept,), published=(published,), quarantined={kept.id: "wrong"})
    yield Results(ENVIRONMENT, _WORKLOADS, kept=(kept,), refutations=(make_refutation(kept, _WORKLOADS[1]),))
    yield Results(ENVIRONMENT, run=make_run("run-1", seed=2**70))


def _template(folder: Path) -> bytes:
    """A catalog with some of everything, as bytes."""
    path = folder / "template.db"
    with SqlCatalog.open_file(path) as catalog:
        registry = Registry(catalog, _BLOBS, clock=lambda: 2000.0)
        key = registry.put_environment(ENVIRONMENT)
        registry.register_network(make_network("ocr", "1", _WORKLOADS))
        first = make_record(_WORKLOADS[0], key, state=RecordState.CHECKED)
        second = make_record(_WORKLOADS[1], key, run_id="run-2", parent_id=first.id)
        registry.publish([first])
        registry.keep([second])
        registry.refute([make_refutation(second, _WORKLOADS[0])])
        registry.add_cost_model(make_snapshot())
        registry.put_run(make_run("run-1"))
        registry.pin_network("ocr", "1")
        registry.invalidate([second.id], "it misled")
    data = path.read_bytes()
    _remove(path)
    return data


@contextlib.contextmanager
def _registry(folder: Path, template: bytes) -> Iterator[Registry]:
    path = folder / "catalog.db"
    path.write_bytes(template)
    with SqlCatalog.open_file(path) as catalog:
        yield Registry(catalog, _BLOBS, clock=lambda: 3000.0)
    _remove(path)


def _remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _cells(template: bytes, folder: Path) -> list[tuple[str, str, int, Any]]:
    """Table, column, row and value of everything that is stored."""
    path = folder / "cells.db"
    path.write_bytes(template)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        tables = [r[0] for r in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'bcd_%'")]
        found = []
        for table in sorted(tables):
            rows = connection.execute(f"SELECT rowid, * FROM {table}")
            names = [column[0] for column in rows.description][1:]
            found += [(table, n, rowid, v) for rowid, *values in rows for n, v in zip(names, values, strict=True)]
    _remove(path)
    return found


def _other_value(rng: Generator, value: Any) -> tuple[str, Any]:
    """A kind and a value to put there."""
    if rng.random() < 0.15:
        strange: tuple[str, Any] = one_of(rng, _STRANGE)
        return strange
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            parsed = json.loads(value)
            if isinstance(parsed, list | dict):
                return "text", mutate_json(rng, parsed).hex()
        return "text", mutate_bytes(rng, value.encode(), [b"published", b"{}"]).hex()
    other: tuple[str, Any] = one_of(rng, _OTHERS)
    return other


def _update(path: Path, table: str, column: str, rowid: int, kind: str, value: Any) -> bool:
    """Whether the database took the value."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        place = "CAST(? AS TEXT)" if kind == "text" else "?"
        given = bytes.fromhex(value) if kind in ("text", "blob") else value
        try:
            connection.execute(f"UPDATE {table} SET {column} = {place} WHERE rowid = ?", (given, rowid))
            connection.commit()
        except sqlite3.Error:
            return False
    return True


def _use(registry: Registry) -> list[BcdError]:
    """Ask for everything; the errors that came, each of which must be one that a user can act on."""
    depths = {workload.key: 32 for workload in _WORKLOADS}
    questions: Sequence[Callable[[], Any]] = (
        lambda: _require_matches(registry, _WORKLOADS, depths),
        lambda: [registry.get_record(record.id) for record in registry.list_records()],
        registry.list_networks,
        lambda: registry.get_network("ocr", "1"),
        registry.list_runs,
        lambda: registry.latest_cost_model(make_snapshot().target),
        registry.list_events,
        registry.counts,
        registry.list_pins,
        registry.named_blobs,
        lambda: registry.beaten_records(1),
        lambda: registry.find_workloads(["conv2d+relu"]),
        lambda: registry.get_environment(_environment_key()),
        lambda: registry.get_workloads([workload.key for workload in _WORKLOADS]),
        lambda: registry.descendants([hex_of("x")]),
    )
    refused: list[BcdError] = []
    for question in questions:
        try:
            question()
        except BcdError as error:
            require("\n" not in error.message and len(error.message) < 1000, "an error has one line")
            refused.append(error)
    return refused


def _require_sound(registry: Registry) -> None:
    """What was stored can be listed and looked up."""
    with contextlib.suppress(CorruptBlob):
        _require_matches(registry, _WORKLOADS, {})
    for record in registry.list_records():
        _require_record(record)
    registry.list_networks()
    registry.list_runs()


def _require_matches(registry: Registry, workloads: Sequence[Workload], depths: dict[str, int]) -> None:
    matches = registry.lookup(workloads, ENVIRONMENT, depths)
    require(len(matches) == len(workloads), "there is one match for each workload")
    for match in matches:
        require((match.record is not None) == (match.grade is Grade.EXACT), "only an exact match has a result")
        if match.record is not None:
            require(match.record.state is RecordState.PUBLISHED, "only what was published is served")
            _require_record(match.record)
        for prior in match.priors:
            _require_prior(prior)


def _require_prior(prior: Prior) -> None:
    require(prior.record.state is not RecordState.QUARANTINED, "what is quarantined is no prior")
    _require_record(prior.record)


def _require_record(record: TuningRecord) -> None:
    require(all(0.0 < t < float("inf") for t in record.run_times_s) and bool(record.run_times_s), "a latency is positive")
    require({type(record.trials), type(record.depth)} == {int}, "trials are whole numbers")
    require({type(kind) for kind, _ in record.decisions} <= {str}, "a decision has a kind")


FORMATS: dict[str, Callable[[Path], Format]] = {
    "settings": settings_format,
    "blob": blob_format,
    "bundle": bundle_format,
    "spool": spool_format,
    "catalog": catalog_format,
}
"""Makers by name: each is given an empty folder of its own."""
