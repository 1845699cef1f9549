"""Writes the golden database of the current revision as SQL: run it once, when a revision is released."""

from __future__ import annotations

import math
import sqlite3
from pathlib import Path

from bcd_registry.catalog.schema import HEAD
from bcd_registry.catalog.sql import SqlCatalog
from bcd_registry.model import Event, EventKind, NetworkVersion, RecordState, Refutation, RunSummary, TuningRecord, Workload
from bcd_registry.testing.values import (
    ENVIRONMENT,
    hex_of,
    make_event,
    make_network,
    make_record,
    make_refutation,
    make_run,
    make_snapshot,
    make_workload,
)

GOLDEN = Path(__file__).parent
PIN = ("ocr", "1")
LEASE = "cluster c"


def workloads() -> list[Workload]:
    return [make_workload(name, cluster="c", extents=(n, 32)) for name, n in (("w1", 16), ("w2", 64))]


def networks() -> list[NetworkVersion]:
    return [make_network("ocr", "1", tuple(workloads()))]


def records(environment_key: str) -> list[TuningRecord]:
    return [make_record(workloads()[0], environment_key, run_id=f"run-{state}", state=state) for state in RecordState]


def refutations(environment_key: str) -> list[Refutation]:
    """Newest first; there are none before revision 0002."""
    misled, others = workloads()[1], records(environment_key)[:2]
    return [
        make_refutation(others[0], misled, distance=misled.distance(workloads()[0]), created_at=2000.0),
        make_refutation(others[1], misled, distance=math.inf, ratio=math.inf),
    ]


def events(environment_key: str) -> list[Event]:
    """Newest first: what was taken back was restored, what drifted is steady; there are none before revision 0004."""
    ids = [record.id for record in records(environment_key)[:2]]
    return [make_event(*ids, id=f"e{i}", kind=kind, created_at=2000.0 - i) for i, kind in enumerate(reversed(EventKind))]


def runs() -> list[RunSummary]:
    return [make_run("run-measured")]


def fill(catalog: SqlCatalog) -> None:
    catalog.put_workloads(workloads())
    for network in networks():
        catalog.put_network(network)
    added = records(catalog.put_environment(ENVIRONMENT))
    catalog.add_records(added, [hex_of(record.run_id) for record in added])
    catalog.add_refutations(refutations(added[0].environment_key))
    steady, drifted, restored, invalidated = events(added[0].environment_key)
    catalog.invalidate_records(invalidated)
    catalog.restore_records(restored, undone=invalidated.id)
    catalog.mark_drift(dict.fromkeys(drifted.records, "slower"), drifted)
    catalog.clear_drift(steady)
    catalog.add_cost_model(make_snapshot(), hex_of("booster"), hex_of("samples"))
    for run in runs():
        catalog.put_run(run)
    catalog.pin_network(*PIN)
    catalog.acquire_lease(LEASE, "run-1", 0.0)


def main(path: Path) -> None:
    with SqlCatalog.open_file(path) as catalog:
        fill(catalog)
    connection = sqlite3.connect(path)
    (GOLDEN / f"revision_{HEAD}.sql").write_text("\n".join(connection.iterdump()) + "\n")
    connection.close()


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder) / "catalog.db")
