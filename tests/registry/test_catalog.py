from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import Engine, event

from bcd_registry.catalog.engines import file_engine, transaction
from bcd_registry.catalog.sql import SqlCatalog
from bcd_registry.errors import StoreDenied, StoreUnavailable
from bcd_registry.testing.catalog_contract import DIGEST, CatalogContract
from bcd_registry.testing.values import ENVIRONMENT, make_record, make_refutation, make_workload


class TestFileCatalog(CatalogContract):
    @pytest.fixture
    def catalog(self, tmp_path: Path) -> Iterator[SqlCatalog]:
        with SqlCatalog.open_file(tmp_path / "catalog.db") as opened:
            yield opened


class TestMemoryCatalog(CatalogContract):
    @pytest.fixture
    def catalog(self) -> Iterator[SqlCatalog]:
        with SqlCatalog.open_memory() as opened:
            yield opened


def pragma(engine: Engine, name: str) -> object:
    with transaction(engine, write=False) as connection:
        return connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()


def test_how_the_file_is_opened(catalog: SqlCatalog) -> None:
    assert pragma(catalog._engine, "journal_mode") == "wal"
    assert pragma(catalog._engine, "foreign_keys") == 1
    assert pragma(catalog._engine, "busy_timeout") == 30_000


def test_finding_takes_a_constant_number_of_queries(catalog: SqlCatalog) -> None:
    workloads = [make_workload(f"w{i}", cluster=f"c{i % 7}") for i in range(2000)]
    catalog.put_workloads(workloads)
    key = catalog.put_environment(ENVIRONMENT)
    records = [make_record(workload, key) for workload in workloads]
    catalog.add_records(records, [DIGEST] * len(records))
    catalog.add_refutations([make_refutation(record, workloads[0]) for record in records])
    statements: list[str] = []
    event.listen(catalog._engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
    found = catalog.find_records(
        workloads=[w.key for w in workloads], clusters=[w.cluster for w in workloads], anchors=[w.anchor for w in workloads]
    )
    assert len(found) == 2000
    assert len(catalog.get_workloads([w.key for w in workloads])) == 2000
    assert len(catalog.find_refutations([w.cluster for w in workloads])) == 2000
    assert len(catalog.get_environments([key] * 2000)) == 1
    assert [s.split()[0] for s in statements] == ["BEGIN", "SELECT"] * 4


def test_finding_uses_the_indexes(catalog: SqlCatalog) -> None:
    statements: list[tuple[str, object]] = []
    event.listen(catalog._engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2:4]))
    catalog.find_records(workloads=["a"], clusters=["b"], anchors=["c"])
    catalog.list_records(workload="ab", limit=10)
    catalog.find_refutations(["b"])
    catalog.get_environments(["d"])
    catalog.latest_cost_model("llvm")
    catalog.list_runs(network="ocr", version="1")
    queries = [entry for entry in statements if entry[0].startswith("SELECT")]
    for query, parameters in queries:
        with transaction(catalog._engine, write=False) as connection:
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {query}", parameters).all()  # type: ignore[arg-type]
        scans = [row[3] for row in plan if row[3].startswith("SCAN bcd_") and "USING INDEX" not in row[3]]
        assert scans == []


def test_a_writer_waits_for_another_then_gives_up(tmp_path: Path, catalog: SqlCatalog) -> None:
    holder = sqlite3.connect(tmp_path / "catalog.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with SqlCatalog.open_file(tmp_path / "catalog.db", busy_timeout_s=0.05) as impatient:
        assert impatient.list_records() == []
        with pytest.raises(StoreUnavailable, match="locked by another process") as caught:
            impatient.put_environment(ENVIRONMENT)
        assert caught.value.hint
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(catalog.put_environment, ENVIRONMENT)
        assert not writing.done()
        holder.execute("ROLLBACK")
        assert writing.result(30)
    holder.close()


def test_a_database_that_may_not_be_written(catalog: SqlCatalog) -> None:
    event.listen(catalog._engine, "checkout", lambda connection, *_: connection.execute("PRAGMA query_only = ON"))
    with pytest.raises(StoreDenied, match="read-only"):
        catalog.put_environment(ENVIRONMENT)


def test_a_full_disk(catalog: SqlCatalog) -> None:
    event.listen(catalog._engine, "checkout", lambda connection, *_: connection.execute("PRAGMA max_page_count = 1"))
    with pytest.raises(StoreUnavailable, match="no space left"):
        catalog.put_workloads([make_workload(f"w{i}") for i in range(2000)])


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "catalog.db").write_text("something else, and long enough to be taken for a header of a database file" * 9)
    with pytest.raises(StoreUnavailable, match="is not a database"):
        SqlCatalog.open_file(tmp_path / "catalog.db")


def test_a_folder_in_place_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "catalog.db").mkdir()
    with pytest.raises(StoreDenied, match="cannot be opened"):
        SqlCatalog.open_file(tmp_path / "catalog.db")


WRITER = """
import sys
from pathlib import Path
from bcd_registry.catalog.sql import SqlCatalog
from bcd_registry.testing.values import ENVIRONMENT, hex_of, make_record, make_workload

with SqlCatalog.open_file(Path(sys.argv[1])) as catalog:
    workload = make_workload("shared")
    catalog.put_workloads([workload])
    key = catalog.put_environment(ENVIRONMENT)
    for i in range(25):
        batch = [make_record(workload, key, run_id=f"{sys.argv[2]}-{i}-{j}") for j in range(4)]
        catalog.add_records(batch, [hex_of("trace")] * 4)
"""


def test_processes_create_one_database_and_write_to_it_together(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    writers = [subprocess.Popen([sys.executable, "-W", "error", "-c", WRITER, str(path), str(i)]) for i in range(3)]
    assert [writer.wait(120) for writer in writers] == [0, 0, 0]
    with SqlCatalog.open_file(path) as catalog:
        assert len(catalog.list_records(limit=1000)) == 300


def test_a_transaction_that_raises_leaves_nothing(catalog: SqlCatalog, tmp_path: Path) -> None:
    engine = file_engine(tmp_path / "catalog.db")

    def write_and_fail() -> None:
        with transaction(engine, write=True) as connection:
            connection.exec_driver_sql("INSERT INTO bcd_environments VALUES ('k', '{}')")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_and_fail()
    with transaction(engine, write=False) as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM bcd_environments").scalar_one() == 0
    engine.dispose()
