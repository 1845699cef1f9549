"""How long a lookup and a publish take in a large catalog: `python -m tests.benchmarks.catalog_scale --records 100000`.

Without `--url` it measures a SQLite file and a PostgreSQL of its own, both in temporary folders.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import random
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, Table

from bcd_registry.blobs.memory import MemoryBlobs
from bcd_registry.catalog import rows, tables
from bcd_registry.catalog.engines import engine_of
from bcd_registry.catalog.sql import SqlCatalog
from bcd_registry.lookup import grade_workloads
from bcd_registry.model import Grade, RecordState, TuningRecord, Workload, canonical_json
from bcd_registry.registry import Registry
from bcd_registry.staleness import environment_key
from bcd_registry.testing.values import ENVIRONMENT, hex_of, make_environment, make_network, make_record, make_run
from infra import programs
from infra.local_stack import LocalStack

N_TASKS = 80
_ENVIRONMENTS = (ENVIRONMENT, make_environment(tvm="0.26.0"))
_DECISIONS = tuple(("SamplePerfectTile", (8, 4, 2, n)) for n in range(6)) + (("SampleCategorical", 3),) * 3
_DESCRIPTION = canonical_json({"blocks": [{"iterators": ["S"] * 7, "expression": "a*b+c", "name": i} for i in range(20)]})
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

    def records(self) -> Iterator[TuningRecord]:
        """The records, those of a workload together."""
        keys = [environment_key(environment) for environment in _ENVIRONMENTS]
        for number in range(self.n_records):
            workload, place = divmod(number, self.per_workload)
            yield make_record(
                self.workload(workload),
                keys[place % len(keys)],
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
        name = hex_of(f"new {rng.random()}")
        extents = (rng.randrange(8, 256), *workload.extents[1:])
        return Workload(
            key=name,
            cluster=workload.cluster,
            anchor=workload.anchor,
            extents=extents,
            flops=1e6,
            bytes_moved=1e5,
            op=workload.op,
            description=_DESCRIPTION,
            anchor_extents=extents[:3],
        )


@dataclass(frozen=True, slots=True)
class Measured:
    """Milliseconds, each list in the order of measurement.

    Attributes:
        find_ms: What the catalog takes for a task of a lookup.
        grade_ms: What grading takes on top of it.
        found: Records and workloads that a lookup read.
        publish_ms: A whole run of `N_TASKS` records.
    """

    find_ms: list[float]
    grade_ms: list[float]
    found: list[tuple[int, int]]
    publish_ms: list[float]

    def lines(self) -> Iterator[str]:
        """The figures for people."""
        n_records, n_workloads = (statistics.mean(counts) for counts in zip(*self.found, strict=True))
        read = f"{n_records:.0f} records of {n_workloads:.0f} workloads read"
        yield f"  lookup, catalog: {_percentiles(self.find_ms)} ms a task ({read})"
        yield f"  lookup, grading: {_percentiles(self.grade_ms)} ms a task"
        yield f"  publish of {N_TASKS} records: {_percentiles(self.publish_ms)} ms"


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
        _bulk(engine, tables.records, (rows.record_row(r, hex_of(r.run_id)) for r in shape.records()))
        _bulk(engine, tables.refutations, _refutations(shape))
        if engine.dialect.name == "postgresql":  # as autovacuum does in time
            with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.exec_driver_sql("VACUUM ANALYZE")
    finally:
        engine.dispose()


def measure(url: str, shape: Shape, *, n_lookups: int = 30, n_publishes: int = 10, seed: int = 0) -> Measured:
    """Lookups of networks that differ, and publishes of new ones."""
    rng = random.Random(seed)
    measured = Measured([], [], [], [])
    depths: dict[str, int] = {}
    with SqlCatalog.open_url(url) as catalog:
        registry = Registry(catalog, MemoryBlobs())
        registry._find(shape.network(rng))  # connects, and compiles the statements
        for _ in range(n_lookups):
            workloads = shape.network(rng)
            started = time.perf_counter()
            known, _ = registry._find(workloads)
            found = time.perf_counter()
            matches = grade_workloads(workloads, known, ENVIRONMENT, depths)
            graded = time.perf_counter()
            assert {match.grade for match in matches} >= {Grade.EXACT, Grade.CLUSTER}
            measured.find_ms.append((found - started) * 1e3 / len(workloads))
            measured.grade_ms.append((graded - found) * 1e3 / len(workloads))
            measured.found.append((len(known.records), len(known.workloads)))
        for i in range(n_publishes):
            measured.publish_ms.append(_publish_ms(catalog, shape.network(rng), f"publish {seed} {i}"))
    return measured


def main(argv: Sequence[str] | None = None) -> None:
    """Fill, measure and print."""
    parser = argparse.ArgumentParser(description="Times lookups and publishes in a large catalog.")
    parser.add_argument("--records", type=int, default=100_000, help="how many the catalog holds (default: %(default)s)")
    parser.add_argument("--per-workload", type=int, default=10, help="records of a workload (%(default)s)")
    parser.add_argument("--per-cluster", type=int, default=12, help="workloads of a cluster (%(default)s)")
    parser.add_argument("--per-anchor", type=int, default=4, help="clusters with an anchor (%(default)s)")
    parser.add_argument("--lookups", type=int, default=30, help="networks looked up (%(default)s)")
    parser.add_argument("--url", action="append", default=[], help="an empty database; may be given more than once")
    options = parser.parse_args(argv)
    shape = Shape(options.records, options.per_workload, options.per_cluster, options.per_anchor)
    with contextlib.ExitStack() as opened:
        for url in options.url or _own_databases(opened):
            started = time.perf_counter()
            fill(url, shape)
            print(f"{url.partition(':')[0]}: {shape} in {time.perf_counter() - started:.0f} s")
            for line in measure(url, shape, n_lookups=options.lookups).lines():
                print(line, flush=True)


def _own_databases(opened: contextlib.ExitStack) -> Iterator[str]:
    yield f"sqlite:///{opened.enter_context(tempfile.TemporaryDirectory())}/catalog.db"
    stack = LocalStack()
    opened.callback(stack.stop)
    stack.postgres.start()
    programs.create_databases(stack.identity)
    yield stack.identity.database_url(programs.DATABASE)


def _refutations(shape: Shape) -> Iterator[rows.Row]:
    """Some record of a cluster misled the cluster's last workload."""
    for number, record in enumerate(shape.records()):
        if number % 100 < shape.n_refuted:
            cluster = number // shape.per_workload // shape.per_cluster
            last = min((cluster + 1) * shape.per_cluster, shape.n_workloads) - 1
            misled = shape.workload(last)
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
    names = table.c.keys()
    values = (tuple(row[name] for name in names) for row in new)
    with contextlib.closing(engine.raw_connection()) as raw:
        cursor: Any = raw.cursor()
        if engine.dialect.name == "postgresql":
            with cursor.copy(f"COPY {table.name} ({', '.join(names)}) FROM STDIN") as copy:
                for row in values:
                    copy.write_row(row)
        else:
            cursor.execute("BEGIN")
            cursor.executemany(f"INSERT INTO {table.name} VALUES ({', '.join('?' * len(names))})", values)
        raw.commit()


def _publish_ms(catalog: SqlCatalog, workloads: Sequence[Workload], run_id: str) -> float:
    key = environment_key(ENVIRONMENT)
    new = [make_record(w, key, run_id=run_id, decisions=_DECISIONS, state=RecordState.PUBLISHED) for w in workloads]
    started = time.perf_counter()
    catalog.put_workloads(workloads)
    catalog.put_network(make_network(run_id, "1", tuple(workloads)))
    catalog.add_records(new, [hex_of(record.id) for record in new])
    catalog.put_run(make_run(run_id))
    return (time.perf_counter() - started) * 1e3


def _percentiles(values: Sequence[float]) -> str:
    ordered = sorted(values)
    places = {name: ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)] for name, share in _SHARES.items()}
    return ", ".join(f"{name} {value:.2f}" for name, value in places.items())


_SHARES = {"p50": 0.5, "p99": 0.99}


if __name__ == "__main__":
    main()
