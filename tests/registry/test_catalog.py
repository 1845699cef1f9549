from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings
from sqlalchemy import Engine, event

from bcd_registry.catalog.engines import engine_of, file_engine, transaction
from bcd_registry.catalog.read_only import ReadOnlyCatalog
from bcd_registry.catalog.sql import SqlCatalog
from bcd_registry.errors import (
    ConfigError,
    CorruptBlob,
    NotFound,
    ReadOnly,
    RegistryError,
    SchemaMismatch,
    StoreDenied,
    StoreUnavailable,
)
from bcd_registry.model import EventKind, Lease, RecordState, Selection
from bcd_registry.ports import Catalog
from bcd_registry.staleness import environment_key
from bcd_registry.testing.catalog_contract import CatalogContract
from bcd_registry.testing.catalog_machine import CatalogMachine
from bcd_registry.testing.history_contract import DIGEST, stored
from bcd_registry.testing.values import (
    ENVIRONMENT,
    make_event,
    make_network,
    make_record,
    make_refutation,
    make_run,
    make_snapshot,
    make_workload,
)
from tests.benchmarks.catalog_scale import Shape, fill, measure


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


class MemoryCatalogMachine(CatalogMachine):
    def open_catalog(self) -> SqlCatalog:
        self.opened = SqlCatalog.open_memory()
        return self.opened

    def teardown(self) -> None:
        self.opened.close()


TestCatalogMachine = MemoryCatalogMachine.TestCase
TestCatalogMachine.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)


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
    assert len(catalog.find_records(refuted_in=[w.cluster for w in workloads])) == 2000
    assert len(catalog.find_relatives(clusters=[w.cluster for w in workloads], anchors=[w.anchor for w in workloads])) == 2000
    assert len(catalog.get_workloads([w.key for w in workloads])) == 2000
    assert len(catalog.find_refutations([w.cluster for w in workloads])) == 2000
    assert len(catalog.get_environments([key] * 2000)) == 1
    assert [s.split()[0] for s in statements] == ["BEGIN", "SELECT"] * 6


def test_finding_uses_the_indexes(catalog: SqlCatalog) -> None:
    statements: list[tuple[str, object]] = []
    event.listen(catalog._engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2:4]))
    catalog.find_records(workloads=["a"], clusters=["b"], anchors=["c"], refuted_in=["d"])
    catalog.find_relatives(clusters=["b"], anchors=["c"])
    catalog.list_records(workload="ab", limit=10)
    catalog.find_refutations(["b"])
    catalog.get_environments(["d"])
    catalog.latest_cost_model("llvm")
    catalog.list_runs(network="ocr", version="1")
    catalog.set_record_states([], RecordState.QUARANTINED, "")
    catalog.remove_records(["e"])
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


def test_a_lookup_in_a_large_catalog_uses_the_indexes(tmp_path: Path) -> None:
    shape, url = Shape(20_000), f"sqlite:///{tmp_path}/large.db"
    fill(url, shape)
    workloads = [shape.workload(number) for number in range(0, shape.n_workloads, shape.n_workloads // 80)]
    statements: list[tuple[str, object]] = []
    with SqlCatalog.open_url(url) as catalog:
        event.listen(catalog._engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2:4]))
        keys, clusters = [w.key for w in workloads], [w.cluster for w in workloads]
        assert len(catalog.find_records(workloads=keys, clusters=clusters, anchors=[workloads[0].anchor])) > 8 * len(keys)
        assert len(catalog.find_relatives(clusters=clusters, anchors=[workloads[0].anchor])) >= len(keys)
        assert catalog.find_records(workloads=keys, refuted_in=clusters)
        for query, parameters in [entry for entry in statements if entry[0].startswith("SELECT")]:
            with transaction(catalog._engine, write=False) as connection:
                explained = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {query}", parameters)  # type: ignore[arg-type]
                plan = [row[3] for row in explained]
            assert not [line for line in plan if line.startswith("SCAN bcd_")]
            for used in ("USING COVERING INDEX ix_bcd_records_best", "ix_bcd_workloads_cluster", "ix_bcd_workloads_anchor"):
                assert any(used in line for line in plan), plan
    measured = measure(url, shape, n_lookups=2, n_publishes=1)
    assert (len(measured.lookup_ms), len(measured.publish_ms)) == (2, 1)
    assert measured.n_queries == 6


def test_keeping_house_takes_a_constant_number_of_queries(catalog: SqlCatalog) -> None:
    workload = make_workload("w")
    catalog.put_workloads([workload])
    key = catalog.put_environment(ENVIRONMENT)
    records = [make_record(workload, key, run_id=f"run-{i}") for i in range(3000)]
    catalog.add_records(records, [DIGEST] * len(records))
    statements: list[str] = []
    event.listen(catalog._engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2].split()[0]))
    beaten = catalog.beaten_records(8)
    assert len(beaten) == 2992
    assert len(catalog.remove_beaten(beaten[:2000], 8)) == 2000
    catalog.remove_records(beaten[2000:])
    catalog.count_rows()
    removal = ["BEGIN", "SELECT", "DELETE", "UPDATE"]
    assert statements == ["BEGIN", "SELECT", *removal, *removal, "BEGIN", "SELECT", "SELECT"]


def test_more_ids_than_a_statement_may_have_parameters(catalog: SqlCatalog) -> None:
    ids = [f"{i:064x}" for i in range(300_000)]
    catalog.remove_records(ids)
    assert catalog.get_workloads(ids) == {}


def test_a_catalog_by_its_url(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a folder/50%25 é.db"
    (tmp_path / "a folder").mkdir()
    with SqlCatalog.open_url(url) as catalog:
        key = catalog.put_environment(ENVIRONMENT)
    assert [path.name for path in (tmp_path / "a folder").iterdir()] == ["50%25 é.db"]
    with SqlCatalog.open_url(url, create=False) as catalog:
        assert catalog.get_environment(key).as_json() == ENVIRONMENT.as_json()


def test_nothing_is_made_where_only_reading_was_asked_for(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="is not there"):
        SqlCatalog.open_url(f"sqlite:///{tmp_path}/none.db", create=False)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "empty.db").touch()
    with pytest.raises(SchemaMismatch, match="has no tables yet") as caught:
        SqlCatalog.open_url(f"sqlite:///{tmp_path}/empty.db", create=False)
    assert "bcd-registry db upgrade" in caught.value.hint


SECRET = "hunter2hunter2"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "catalog.db",
        SECRET,
        f"bcd:{SECRET}@host/bcd",
        f"mysql://bcd:{SECRET}@host/bcd",
        f"postgresql+psycopg2://bcd:{SECRET}@host/bcd",
        f"postgresql+psycopg://bcd:{SECRET}",
        f"postgresql+psycopg://bcd:{SECRET}@host",
        f"postgresql+psycopg://bcd:p@{SECRET}@host/bcd",
        f"postgresql+psycopg://bcd@host:{SECRET}/bcd",
        "sqlite://",
        "sqlite:///",
    ],
)
def test_a_url_of_no_catalog(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        engine_of(url)
    assert SECRET not in f"{caught.value.message} {caught.value.hint}"
    assert "\n" not in caught.value.message
    assert "postgresql+psycopg://" in caught.value.hint


class Untouchable:
    """In place of a catalog: any use of it is an error."""

    def __getattr__(self, name: str) -> object:
        raise AssertionError(name)


WRITES: dict[str, Callable[[Catalog], object]] = {
    "put_environment": lambda c: c.put_environment(ENVIRONMENT),
    "put_workloads": lambda c: c.put_workloads([]),
    "put_network": lambda c: c.put_network(make_network("ocr", "1", ())),
    "delete_network": lambda c: c.delete_network("ocr", "1"),
    "pin_network": lambda c: c.pin_network("ocr", "1"),
    "unpin_network": lambda c: c.unpin_network("ocr", "1"),
    "add_records": lambda c: c.add_records([], []),
    "set_record_states": lambda c: c.set_record_states([], RecordState.CHECKED, ""),
    "invalidate_records": lambda c: c.invalidate_records(make_event()),
    "restore_records": lambda c: c.restore_records(make_event(kind=EventKind.RESTORED)),
    "mark_drift": lambda c: c.mark_drift({}, make_event(kind=EventKind.DRIFTED)),
    "clear_drift": lambda c: c.clear_drift(make_event(kind=EventKind.STEADY)),
    "add_refutations": lambda c: c.add_refutations([]),
    "forget_refutations": lambda c: c.forget_refutations([]),
    "add_cost_model": lambda c: c.add_cost_model(make_snapshot(), DIGEST, DIGEST),
    "put_run": lambda c: c.put_run(make_run("run-1")),
    "remove_records": lambda c: c.remove_records([]),
    "remove_beaten": lambda c: c.remove_beaten([], 1),
    "remove_cost_models": lambda c: c.remove_cost_models([]),
    "acquire_lease": lambda c: c.acquire_lease("c", "run-1", 1.0),
    "renew_lease": lambda c: c.renew_lease(Lease("c", "run-1", 1, 0.0), 1.0),
    "release_lease": lambda c: c.release_lease(Lease("c", "run-1", 1, 0.0)),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_read_only_catalog_refuses_each_write_before_it_is_sent(name: str) -> None:
    with pytest.raises(ReadOnly, match="read-only") as caught:
        WRITES[name](ReadOnlyCatalog(Untouchable()))  # type: ignore[arg-type]
    assert caught.value.hint


def test_a_read_only_catalog_passes_every_read_on(catalog: SqlCatalog) -> None:
    workload = make_workload("w")
    catalog.put_workloads([workload])
    network = make_network("ocr", "1", (workload,))
    catalog.put_network(network)
    catalog.pin_network("ocr", "1")
    key = catalog.put_environment(ENVIRONMENT)
    record = make_record(workload, key)
    catalog.add_records([record], [DIGEST])
    refutation = make_refutation(record, workload)
    catalog.add_refutations([refutation])
    catalog.add_cost_model(make_snapshot(), DIGEST, DIGEST)
    catalog.put_run(make_run("run-1"))
    reader = ReadOnlyCatalog(catalog)
    assert reader.get_environment(key).as_json() == reader.get_environments([key])[key].as_json() == ENVIRONMENT.as_json()
    assert reader.get_workloads([workload.key]) == {workload.key: workload}
    assert reader.list_networks() == [reader.get_network("ocr", "1")] == [network]
    assert reader.list_pins() == {("ocr", "1")}
    assert reader.find_records(anchors=[workload.anchor], per_workload=1) == [(stored(record), DIGEST)]
    assert reader.find_records(refuted_in=[workload.cluster]) == [(stored(record), DIGEST)]
    assert reader.find_relatives(clusters=[workload.cluster]) == catalog.find_relatives(clusters=[workload.cluster])
    assert reader.list_records(workload=workload.key, network=("ocr", "1"), limit=1) == [reader.get_record(record.id)]
    assert reader.find_refutations([workload.cluster]) == [refutation]
    assert reader.latest_cost_model(make_snapshot().target) == catalog.latest_cost_model(make_snapshot().target)
    assert reader.list_runs(network="ocr", version="1", limit=1) == [make_run("run-1")]
    assert reader.named_blobs() == {DIGEST}
    assert reader.select_records(Selection(record=record.id), now_s=0.0) == [(stored(record), DIGEST)]
    assert reader.find_descendants([record.id]) == reader.find_ancestors(record.id) == []
    assert reader.find_left_out(workloads=[workload.key], clusters=[workload.cluster], limit=1) == []
    assert reader.find_workloads([workload.op], limit_per_op=1) == [replace(workload, description="")]
    taken_back = make_event(record.id)
    catalog.invalidate_records(taken_back)
    assert reader.list_events(record=record.id, limit=1) == [reader.get_event(taken_back.id)] == [taken_back]
    assert reader.beaten_records(0) == []
    assert reader.outdated_cost_models(0).keys() == catalog.outdated_cost_models(0).keys()
    assert reader.count_rows() == catalog.count_rows()
    with pytest.raises(NotFound):
        reader.get_network("ocr", "2")


def test_every_method_of_the_port_is_a_read_or_a_write_of_the_read_only_catalog() -> None:
    methods = {name for name in vars(Catalog) if not name.startswith("_")}
    assert methods <= set(vars(ReadOnlyCatalog))
    assert {name for name in methods if vars(ReadOnlyCatalog)[name].__doc__ == "Refused."} == set(WRITES)


def test_a_text_that_is_not_unicode(catalog: SqlCatalog) -> None:
    with pytest.raises(RegistryError, match="not Unicode"):
        catalog.put_run(make_run("run \udcff"))
    assert catalog.list_runs() == []


EDITS = [
    ("bcd_environments", "fields", "{"),
    ("bcd_environments", "fields", "[]"),
    ("bcd_workloads", "extents", "16"),
    ("bcd_workloads", "anchor_extents", '["a"]'),
    ("bcd_networks", "shapes", '{"x": 3}'),
    ("bcd_networks", "shapes", "null"),
    ("bcd_records", "decisions", '[["SampleCategorical"]]'),
    ("bcd_records", "run_times_s", "[]"),
    ("bcd_records", "run_times_s", '["fast"]'),
    ("bcd_records", "state", "splendid"),
    ("bcd_cost_models", "metadata", "7"),
    ("bcd_runs", "report", ""),
    ("bcd_runs", "seed", "seven"),
]


READS: dict[str, Callable[[SqlCatalog], object]] = {
    "bcd_environments": lambda c: c.get_environments([environment_key(ENVIRONMENT)]),
    "bcd_workloads": lambda c: c.find_relatives(clusters=[make_workload("w").cluster]),
    "bcd_networks": lambda c: c.list_networks(),
    "bcd_records": lambda c: c.list_records(),
    "bcd_cost_models": lambda c: c.latest_cost_model(make_snapshot().target),
    "bcd_runs": lambda c: c.list_runs(),
}


@pytest.mark.parametrize(("table", "column", "value"), EDITS)
def test_a_row_that_somebody_edited_is_named(
    catalog: SqlCatalog, caplog: pytest.LogCaptureFixture, table: str, column: str, value: str
) -> None:
    workload = make_workload("w")
    catalog.put_workloads([workload])
    catalog.put_network(make_network("ocr", "1", (workload,)))
    key = catalog.put_environment(ENVIRONMENT)
    catalog.add_records([make_record(workload, key)], [DIGEST])
    catalog.add_cost_model(make_snapshot(), DIGEST, DIGEST)
    catalog.put_run(make_run("run-1"))
    with transaction(catalog._engine, write=True) as connection:
        connection.exec_driver_sql(f"UPDATE {table} SET {column} = ?", (value,))
    if table == "bcd_cost_models":
        with pytest.raises(CorruptBlob, match=r"^the row of cost model \w{12} is damaged: .") as caught:
            READS[table](catalog)
        assert caught.value.hint
    else:
        assert not READS[table](catalog)
        [logged] = caplog.messages
        assert re.fullmatch(r"the row of \w+ [\w-]+ is damaged: .+; it is left out", logged)
