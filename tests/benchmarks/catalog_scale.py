"""How long a lookup and a publish take in a large catalog: `python -m tests.benchmarks.catalog_scale --records 100000`.

Without `--url` it measures a SQLite file and a PostgreSQL of its own, both in temporary folders. With `--keep` the figures go
into `tests/benchmarks/scale.jsonl`, from which BENCHMARKS.md is made.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import functools
import math
import os
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, Table, event

from bcd_registry.blobs.digests import blob_digest
from bcd_registry.blobs.local import LocalBlobs
from bcd_registry.catalog import rows, tables
from bcd_registry.catalog.engines import engine_of
from bcd_registry.catalog.sql import SqlCatalog
from bcd_registry.model import Grade, Match, RecordState, TuningRecord, Workload, canonical_json
from bcd_registry.ports import BlobStore
from bcd_registry.reading import Reading
from bcd_registry.registry import Registry
from bcd_registry.staleness import environment_key
from bcd_registry.testing.values import ENVIRONMENT, hex_of, make_environment, make_network, make_record, make_run
from bcd_registry.traces import pack_trace
from infra import programs
from infra.identity import BUCKET
from infra.local_stack import LocalStack

from .scale import SCALES, Scale, median, percentile, write_scales

N_TASKS = 80
ROOT = Path(__file__).parents[2]
_ENVIRONMENTS = (ENVIRONMENT, make_environment(tvm="0.26.0"))
_DECISIONS = tuple(("SamplePerfectTile", (8, 4, 2, n)) for n in range(6)) + (("SampleCategorical", 3),) * 3
_DESCRIPTION = canonical_json({"blocks": [{"iterators": ["S"] * 7, "expression": "a*b+c", "name": i} for i in range(20)]})
_TRACE = [[[kind, [f"l{i}", f"b{i}"], [i, 64], [f"v{i}"]] for i in range(60) for kind in ("Split", "Reorder")], [[0, [8, 4]]]]
_STATES = (RecordState.PUBLISHED, RecordState.CHECKED, *[RecordState.MEASURED] * 6)


@dataclass(frozen=True, slots=True)
class Shape:
    """What a catalog holds.

    Attributes:
        n_records: All of them.
        per_workload: Records of a workload, over the environments.
        per_cluster: Workloads of a cluster.
        per_anchor: Clusters with an anchor.
        n_refuted: Refutations for each hundred records.
    """

    n_records: int
    per_workload: int = 10
    per_cluster: int = 12
    per_anchor: int = 4
    n_refuted: int = 2

    @property
    def n_workloads(self) -> int:
        """Workloads with records."""
        return math.ceil(self.n_records / self.per_workload)

    def workload(self, number: int) -> Workload:
        """The workload of the number; those beyond `n_workloads` are not stored."""
        cluster = number // self.per_cluster
        extents = (16 + number % 97, 32, 8 + number % 31, 3, 3)
        return Workload(
            key=hex_of(f"workload {number}"),
            cluster=hex_of(f"cluster {cluster}"),
            anchor=hex_of(f"anchor {cluster // self.per_anchor}"),
            extents=extents,
            flops=1e6,
            bytes_moved=1e5,
            op="conv2d+add+relu",
            description=_DESCRIPTION,
            anchor_extents=extents[:3],
        )

    def record(self, number: int) -> TuningRecord:
        """The record of the number; those of a workload follow each other."""
        workload, place = divmod(number, self.per_workload)
        return make_record(
            self.workload(workload),
            environment_key(_ENVIRONMENTS[place % len(_ENVIRONMENTS)]),
            run_id=f"run {number}",
            decisions=_DECISIONS,
            state=_STATES[place % len(_STATES)],
            run_times_s=(1e-3 + place * 1e-4,) * 3,
            created_at=float(number),
        )

    def network(self, rng: random.Random) -> list[Workload]:
        """The workloads of a network: half of them are known, the others are new to known clusters."""
        known = rng.sample(range(self.n_workloads), min(N_TASKS, self.n_workloads))
        new = [self.workload(number) for number in known[N_TASKS // 2 :]]
        others = [self._sibling(workload, rng) for workload in new]
        return [self.workload(number) for number in known[: N_TASKS // 2]] + others

    def _sibling(self, workload: Workload, rng: random.Random) -> Workload:
        extents = (rng.randrange(8, 256), *workload.extents[1:])
        return replace(workload, key=hex_of(f"new {rng.random()}"), extents=extents, anchor_extents=extents[:3])


def fill(url: str, shape: Shape) -> None:
    """Put the shape's rows into an empty catalog, past the port and fast."""
    SqlCatalog.open_url(url).close()
    engine = engine_of(url)
    try:
        environments = [
            {"key": environment_key(environment), "fields": canonical_json(environment.as_json())}
            for environment in _ENVIRONMENTS
        ]
        _bulk(engine, tables.environments, environments)
        _bulk(engine, tables.workloads, (rows.workload_row(shape.workload(i)) for i in range(shape.n_workloads)))
        _bulk(engine, tables.records, _records(shape))
        _bulk(engine, tables.refutations, _refutations(shape))
        if engine.dialect.name == "postgresql":  # as autovacuum does in time
            with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.exec_driver_sql("VACUUM ANALYZE")
    finally:
        engine.dispose()


def measure(
    url: str, shape: Shape, *, n_lookups: int = 100, n_publishes: int = 20, remote: BlobStore | None = None, seed: int = 0
) -> Scale:
    """Lookups of networks that differ, and publishes of new ones.

    Args:
        remote: Where the published traces go; by default into a local folder, in which those lie that are looked up.
    """
    rng = random.Random(seed)
    lookup_ms: list[float] = []
    catalog_ms: list[float] = []
    n_read: list[int] = []
    n_queries = 0
    with tempfile.TemporaryDirectory() as folder, SqlCatalog.open_url(url) as catalog:
        blobs = LocalBlobs(Path(folder))
        registry = Registry(catalog, blobs)
        read(catalog, shape.network(rng))  # connects, and compiles the statements
        for _ in range(n_lookups):
            workloads = shape.network(rng)
            lay_traces(blobs, shape, workloads)
            with _counted(catalog) as queries:
                started = time.perf_counter()
                matches = registry.lookup(workloads, ENVIRONMENT, {})
                lookup_ms.append((time.perf_counter() - started) * 1e3 / len(workloads))
            n_queries = max(n_queries, len(queries))
            assert {match.grade for match in matches} >= {Grade.EXACT, Grade.CLUSTER}
            started = time.perf_counter()
            reading, _ = read(catalog, shape.network(rng))
            catalog_ms.append((time.perf_counter() - started) * 1e3 / len(workloads))
            n_read.append(len(reading.digests))
        team = Registry(catalog, remote or blobs)
        publish_ms = [_publish_ms(team, shape.network(rng), f"publish {seed} {i}") for i in range(n_publishes)]
    database = url.partition(":")[0].partition("+")[0]
    return Scale(
        database, shape.n_records, len(workloads), lookup_ms, catalog_ms, n_queries, statistics.mean(n_read), publish_ms
    )


def read(catalog: SqlCatalog, workloads: Sequence[Workload]) -> tuple[Reading, list[Match]]:
    """What a lookup reads, and grades, without traces."""
    reading = Reading(catalog, workloads, ENVIRONMENT, {})
    return reading, reading.described(reading.grade())


def lay_traces(blobs: LocalBlobs, shape: Shape, workloads: Sequence[Workload]) -> None:
    """The traces of all workloads of the clusters, as files that were fetched before."""
    wanted = {workload.cluster for workload in workloads}
    clusters = math.ceil(shape.n_workloads / shape.per_cluster)
    for cluster in (n for n in range(clusters) if hex_of(f"cluster {n}") in wanted):
        for number in range(cluster * shape.per_cluster, min((cluster + 1) * shape.per_cluster, shape.n_workloads)):
            data = pack_trace(shape.workload(number).key, _TRACE)
            path = blobs._path(blob_digest(data))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


def main(argv: Sequence[str] | None = None) -> None:
    """Fill, measure and print."""
    parser = argparse.ArgumentParser(description="Times lookups and publishes in a large catalog.")
    parser.add_argument("--records", type=int, default=100_000, help="how many the catalog holds (default: %(default)s)")
    parser.add_argument("--per-workload", type=int, default=10, help="records of a workload (%(default)s)")
    parser.add_argument("--per-cluster", type=int, default=12, help="workloads of a cluster (%(default)s)")
    parser.add_argument("--per-anchor", type=int, default=4, help="clusters with an anchor (%(default)s)")
    parser.add_argument("--lookups", type=int, default=100, help="networks looked up (%(default)s)")
    parser.add_argument("--database", choices=("sqlite", "postgresql"), action="append", help="only this one")
    parser.add_argument("--url", action="append", default=[], help="an empty database; may be given more than once")
    parser.add_argument("--keep", action="store_true", help="keep the figures for BENCHMARKS.md")
    options = parser.parse_args(argv)
    shape = Shape(options.records, options.per_workload, options.per_cluster, options.per_anchor)
    with contextlib.ExitStack() as opened:
        own = _own_stores(opened, options.database or ("sqlite", "postgresql"))
        for url, remote in [(url, None) for url in options.url] or own:
            load = os.getloadavg()[0]
            started = time.perf_counter()
            fill(url, shape)
            fill_s = time.perf_counter() - started
            found = replace(measure(url, shape, n_lookups=options.lookups, remote=remote), fill_s=fill_s, facts=_facts(load))
            print(*lines(found), sep="\n", flush=True)
            if options.keep:
                write_scales(SCALES, [found])


def lines(found: Scale) -> Iterator[str]:
    """The figures for people."""
    yield f"{found.database}, {found.n_records} records, filled in {found.fill_s:.0f} s, load {found.facts.get('load', '-')}"
    for name, values in (("lookup", found.lookup_ms), ("of that catalog and grading", found.catalog_ms)):
        yield f"  {name}: p50 {percentile(values, 0.5):.2f}, p99 {percentile(values, 0.99):.2f} ms a task"
    yield f"  {found.n_queries} queries, {found.n_read:.0f} records read"
    yield f"  publish of {found.n_tasks} records: median {median(found.publish_ms):.0f}, at most {max(found.publish_ms):.0f} ms"


def _own_stores(opened: contextlib.ExitStack, wanted: Sequence[str]) -> Iterator[tuple[str, BlobStore | None]]:
    """A file, and PostgreSQL with an S3 server beside it."""
    if "sqlite" in wanted:
        yield f"sqlite:///{opened.enter_context(tempfile.TemporaryDirectory())}/catalog.db", None
    if "postgresql" in wanted:
        from bcd_registry.blobs.s3 import S3Blobs

        stack = opened.enter_context(LocalStack())
        os.environ.update(stack.identity.s3_credentials)
        remote = S3Blobs(BUCKET, "scale", endpoint_url=stack.identity.s3_endpoint, path_style=True)
        opened.callback(remote.close)
        yield stack.identity.database_url(programs.DATABASE), remote


def _records(shape: Shape) -> Iterator[rows.Row]:
    """The records' rows; all of a workload have one trace."""
    digest = ""
    for number in range(shape.n_records):
        record = shape.record(number)
        if number % shape.per_workload == 0:
            digest = blob_digest(pack_trace(record.workload_key, _TRACE))
        yield rows.record_row(record, digest)


def _refutations(shape: Shape) -> Iterator[rows.Row]:
    """Some record of a cluster misled the cluster's last workload."""
    for number in (n for n in range(shape.n_records) if n % 100 < shape.n_refuted):
        record = shape.record(number)
        cluster = number // shape.per_workload // shape.per_cluster
        misled = shape.workload(min((cluster + 1) * shape.per_cluster, shape.n_workloads) - 1)
        yield {
            "record_id": record.id,
            "workload_key": misled.key,
            "environment_key": record.environment_key,
            "cluster": misled.cluster,
            "distance": 1.0,
            "ratio": 1.5,
            "run_id": "run",
            "created_at": 0.0,
        }


def _bulk(engine: Engine, table: Table, new: Iterable[rows.Row]) -> None:
    with contextlib.closing(engine.raw_connection()) as raw:
        cursor: Any = raw.cursor()
        remaining = iter(new)
        first = next(remaining)
        names = list(first)
        values = (tuple(row[name] for name in names) for row in (first, *remaining))
        if engine.dialect.name == "postgresql":
            with cursor.copy(f"COPY {table.name} ({', '.join(names)}) FROM STDIN") as copy:
                for row in values:
                    copy.write_row(row)
        else:
            cursor.execute("BEGIN")
            places = ", ".join("?" * len(names))
            cursor.executemany(f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({places})", values)
        raw.commit()


def _publish_ms(registry: Registry, workloads: Sequence[Workload], run_id: str) -> float:
    """A network, a record with a trace of its own for each task, and the run."""
    key = environment_key(ENVIRONMENT)
    fields: dict[str, Any] = {"run_id": run_id, "decisions": _DECISIONS, "state": RecordState.CHECKED}
    new = [make_record(w, key, trace=[*_TRACE, [w.key, run_id]], **fields) for w in workloads]
    started = time.perf_counter()
    registry.register_network(make_network(run_id, "1", tuple(workloads)))
    registry.publish(new)
    registry.put_run(make_run(run_id))
    return (time.perf_counter() - started) * 1e3


@contextlib.contextmanager
def _counted(catalog: SqlCatalog) -> Iterator[list[str]]:
    """The queries of the block."""
    queries: list[str] = []

    def note(*arguments: Any) -> None:
        if arguments[2].startswith("SELECT"):
            queries.append(arguments[2])

    event.listen(catalog._engine, "before_cursor_execute", note)
    try:
        yield queries
    finally:
        event.remove(catalog._engine, "before_cursor_execute", note)


@functools.cache
def _revision() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    found = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    return found.stdout.strip() or "unknown"


def _facts(load: float) -> dict[str, Any]:
    """The machine, without its name, and what it did before."""
    from bcd_tuner.environment import cpu_model
    from bcd_tuner.targets import usable_cores

    return {
        "cpu": cpu_model(),
        "cores": usable_cores(),
        "date": f"{dt.datetime.now(dt.UTC):%Y-%m-%d}",
        "revision": _revision(),
        "load": round(load, 1),
    }


if __name__ == "__main__":
    main()
