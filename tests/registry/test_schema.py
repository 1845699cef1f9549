from __future__ import annotations

import dataclasses
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, MetaData, inspect, select, text

from bcd_registry.catalog import schema
from bcd_registry.catalog.engines import engine_of, transaction
from bcd_registry.catalog.failures import catalog_name
from bcd_registry.catalog.sql import SqlCatalog
from bcd_registry.catalog.tables import VERSION_TABLE, metadata
from bcd_registry.errors import RegistryError, SchemaMismatch
from bcd_registry.model import EventKind, RecordState
from bcd_registry.staleness import environment_key
from bcd_registry.testing.catalog_contract import LONG_S, taken
from bcd_registry.testing.history_contract import stored
from bcd_registry.testing.values import ENVIRONMENT, hex_of, make_environment, make_event, make_workload

from .golden import make_database

GOLDEN = sorted(make_database.GOLDEN.glob("revision_*.sql"))


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database without tables."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/catalog.db"
    found: str = request.getfixturevalue("postgres_url")
    return found


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    engine = engine_of(url)
    yield engine
    engine.dispose()


def set_revision(engine: Engine, *revisions: str) -> None:
    schema.create_or_check(engine)
    with transaction(engine, write=True) as connection:
        connection.execute(text(f"DELETE FROM {VERSION_TABLE}"))
        for revision in revisions:
            connection.execute(text(f"INSERT INTO {VERSION_TABLE} VALUES ('{revision}')"))


def contents(engine: Engine) -> dict[str, list[tuple[object, ...]]]:
    """Every row by table, whatever the tables are."""
    found = MetaData()
    with transaction(engine, write=False) as connection:
        found.reflect(connection)
        rows = {table.name: connection.execute(select(table)).all() for table in found.sorted_tables}
    return {name: sorted((tuple(row) for row in each), key=repr) for name, each in rows.items()}


def load_dump(engine: Engine, dump: Path) -> None:
    """Make the dumped database: as it was in SQLite, and its rows in PostgreSQL's tables of that revision."""
    if engine.dialect.name == "sqlite":
        connection = sqlite3.connect(str(engine.url.database))
        connection.executescript(dump.read_text())
        connection.close()
    else:
        with sqlite3.connect(":memory:") as source:
            source.executescript(dump.read_text())
            copy_rows(source, engine, revision_of(dump))
        source.close()


def copy_rows(source: sqlite3.Connection, engine: Engine, revision: str) -> None:
    source.row_factory = sqlite3.Row
    found = MetaData()
    with transaction(engine, write=True) as connection:
        schema.upgrade(connection, revision)
        found.reflect(connection)
        for table in found.sorted_tables:
            rows = [dict(row) for row in source.execute(f'SELECT * FROM "{table.name}"')]
            if rows and table.name != VERSION_TABLE:
                connection.execute(table.insert(), rows)


def revision_of(dump: Path) -> str:
    return dump.stem.removeprefix("revision_")


def tables_of(engine: Engine) -> set[str]:
    with transaction(engine, write=False) as connection:
        return set(inspect(connection).get_table_names())


def test_one_head_and_it_is_the_one_of_this_release() -> None:
    script = ScriptDirectory(str(schema.migrations_folder()))
    assert script.get_heads() == [schema.HEAD]
    assert schema.known_revisions()[0] == schema.HEAD
    assert all(len(revision) == 4 and revision.isdigit() for revision in schema.known_revisions())


def test_up_down_up(engine: Engine) -> None:
    for _ in range(2):
        with transaction(engine, write=True) as connection:
            schema.upgrade(connection)
            assert schema.current_revision(connection) == schema.HEAD
        assert tables_of(engine) == {*metadata.tables, VERSION_TABLE}
        with transaction(engine, write=True) as connection:
            schema.downgrade(connection, "base")
            assert schema.current_revision(connection) is None
        assert tables_of(engine) == {VERSION_TABLE}


def test_every_step_down_and_up_again(engine: Engine) -> None:
    with transaction(engine, write=True) as connection:
        schema.upgrade(connection)
        for _ in schema.known_revisions():
            schema.downgrade(connection, "-1")
        for _ in schema.known_revisions():
            schema.upgrade(connection, "+1")
        assert schema.current_revision(connection) == schema.HEAD


def test_the_models_equal_the_migrations(engine: Engine) -> None:
    with transaction(engine, write=True) as connection:
        schema.upgrade(connection)
        options = {"version_table": VERSION_TABLE, "compare_type": True, "compare_server_default": True}
        assert compare_metadata(MigrationContext.configure(connection, opts=options), metadata) == []


def test_a_failed_migration_leaves_nothing(engine: Engine) -> None:
    def upgrade_and_fail() -> None:
        with transaction(engine, write=True) as connection:
            schema.upgrade(connection)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        upgrade_and_fail()
    assert tables_of(engine) == set()


@pytest.mark.parametrize("dump", GOLDEN, ids=lambda path: path.stem)
def test_a_golden_database_is_upgraded_and_then_used(url: str, engine: Engine, dump: Path) -> None:
    load_dump(engine, dump)
    revision = revision_of(dump)
    assert schema.upgrade_database(engine) == (revision, schema.HEAD)
    key = environment_key(ENVIRONMENT)
    with SqlCatalog.open_url(url) as catalog:
        records = make_database.records(key)
        known = ENVIRONMENT if revision >= "0004" else make_environment(load=None)
        assert catalog.get_environment(key).as_json() == known.as_json()
        assert catalog.list_networks() == make_database.networks()
        assert catalog.list_runs() == make_database.runs()
        assert [catalog.get_record(r.id) for r in records] == [(stored(r), hex_of(r.run_id)) for r in records]
        found = [r.state for r, _ in catalog.find_records(clusters=[make_workload("w1", cluster="c").cluster])]
        assert found == [RecordState.PUBLISHED, RecordState.CHECKED, RecordState.MEASURED]
        catalog.set_record_states([records[0].id], RecordState.QUARANTINED, "used")
        model = catalog.latest_cost_model('{"kind":"llvm"}')
        assert model is not None
        assert model[1:] == (hex_of("booster"), hex_of("samples"))
        refutations, cluster = make_database.refutations(key), make_workload("w1", cluster="c").cluster
        assert catalog.find_refutations([cluster]) == (refutations if revision >= "0002" else [])
        catalog.add_refutations(refutations)
        assert catalog.find_refutations([cluster]) == refutations
        assert catalog.list_events() == (make_database.events(key) if revision >= "0004" else [])
        taken_back = make_event(records[1].id, id="f0", created_at=3000.0)
        catalog.invalidate_records(taken_back)
        assert catalog.get_record(records[1].id)[0].invalidated == taken_back.id
        assert len(catalog.find_left_out(workloads=[records[1].workload_key])) == 3
        assert catalog.restore_records(dataclasses.replace(taken_back, id="f1", kind=EventKind.RESTORED)) == (records[1].id,)
        assert catalog.find_descendants([records[0].id]) == []
        assert catalog.list_pins() == ({make_database.PIN} if revision >= "0003" else set())
        catalog.pin_network(*make_database.PIN)
        assert catalog.beaten_records(0) == []
        lease = taken(catalog.acquire_lease(make_database.LEASE, "run-2", LONG_S))
        assert lease.token == (2 if revision >= "0003" else 1)


def test_every_revision_has_a_golden_database() -> None:
    assert [revision_of(dump) for dump in GOLDEN] == sorted(schema.known_revisions())


def test_a_fresh_database_is_made_at_the_current_revision(url: str, engine: Engine) -> None:
    SqlCatalog.open_url(url).close()
    with transaction(engine, write=False) as connection:
        assert schema.current_revision(connection) == schema.HEAD


@pytest.mark.parametrize("dump", GOLDEN[:-1], ids=lambda path: path.stem)
def test_an_old_golden_database_is_refused_until_it_is_upgraded(url: str, engine: Engine, dump: Path) -> None:
    load_dump(engine, dump)
    message = f"has revision {revision_of(dump)}, this release needs {schema.HEAD}"
    for create in (True, False):
        with pytest.raises(SchemaMismatch, match=message) as caught:
            SqlCatalog.open_url(url, create=create)
        assert "bcd-registry db upgrade" in caught.value.hint
    schema.upgrade_database(engine)
    SqlCatalog.open_url(url, create=False).close()


def test_going_down_and_up_again_keeps_all_but_the_new_tables(url: str, engine: Engine) -> None:
    load_dump(engine, GOLDEN[-1])
    with transaction(engine, write=True) as connection:
        schema.downgrade(connection, "0001")
        assert not {"bcd_refutations", "bcd_pins", "bcd_leases", "bcd_events", "bcd_event_records"} & set(
            inspect(connection).get_table_names()
        )
        schema.upgrade(connection)
    key = environment_key(ENVIRONMENT)
    with SqlCatalog.open_url(url) as catalog:
        assert {record.id for record, _ in catalog.list_records()} == {record.id for record in make_database.records(key)}
        assert catalog.find_refutations([make_workload("w1", cluster="c").cluster]) == []
        assert catalog.list_pins() == set()


def test_going_down_serves_nothing_that_was_taken_back(url: str, engine: Engine) -> None:
    load_dump(engine, GOLDEN[-1])
    first, second = make_database.records(environment_key(ENVIRONMENT))[:2]
    with SqlCatalog.open_url(url) as catalog:
        catalog.invalidate_records(make_event(first.id, id="f0"))
    with transaction(engine, write=True) as connection:
        schema.downgrade(connection, "0003")
        schema.upgrade(connection)
    with SqlCatalog.open_url(url) as catalog:
        states = [(r.state, r.reason, r.invalidated) for r in (catalog.get_record(i)[0] for i in (first.id, second.id))]
        assert states == [("quarantined", "invalidated", ""), (second.state, "", "")]


@pytest.mark.parametrize(
    ("revisions", "message", "hint"),
    [
        (("0000",), "has revision 0000, this release needs", "bcd-registry db upgrade"),
        (("9999",), "made by a newer release", "install a newer bcd-registry; `bcd-registry db upgrade`"),
        (("8c6f1a2b3d4e",), "unknown revision '8c6f1a2b3d4e'", "bcd-registry db upgrade"),
        (("0001", "9999"), "has 2 revisions at once", "bcd-registry db upgrade"),
    ],
)
def test_another_revision_is_refused(url: str, engine: Engine, revisions: tuple[str, ...], message: str, hint: str) -> None:
    set_revision(engine, *revisions)
    before = contents(engine)
    for create in (True, False):
        with pytest.raises(SchemaMismatch, match=message) as caught:
            SqlCatalog.open_url(url, create=create)
        assert hint in caught.value.hint
        assert catalog_name(engine.url) in caught.value.message
    assert contents(engine) == before


@pytest.mark.parametrize("revision", ["0000", "9999", "8c6f1a2b3d4e"])
def test_what_cannot_be_upgraded_is_left_alone(engine: Engine, revision: str) -> None:
    set_revision(engine, revision)
    before = contents(engine)
    with pytest.raises(SchemaMismatch):
        schema.upgrade_database(engine)
    assert contents(engine) == before


def test_tables_without_a_revision_are_refused(url: str, engine: Engine) -> None:
    with transaction(engine, write=True) as connection:
        connection.execute(text("CREATE TABLE bcd_records (id TEXT)"))
    with pytest.raises(SchemaMismatch, match="no revision"):
        SqlCatalog.open_url(url)


def test_tables_of_another_program_are_left_alone(url: str, engine: Engine) -> None:
    with transaction(engine, write=True) as connection:
        connection.execute(text("CREATE TABLE alembic_version (version_num TEXT)"))
        connection.execute(text("CREATE TABLE runs (run_uuid TEXT)"))
        connection.execute(text("INSERT INTO alembic_version VALUES ('1b5f0d9ad7c1')"))
    assert schema.upgrade_database(engine) == (None, schema.HEAD)
    SqlCatalog.open_url(url).close()
    assert tables_of(engine) == {"alembic_version", "runs", VERSION_TABLE, *metadata.tables}
    assert contents(engine)["alembic_version"] == [("1b5f0d9ad7c1",)]
    with transaction(engine, write=True) as connection:
        schema.downgrade(connection, "base")
    assert tables_of(engine) == {"alembic_version", "runs", VERSION_TABLE}
    assert contents(engine)["alembic_version"] == [("1b5f0d9ad7c1",)]


def test_a_database_without_our_tables_is_fresh(url: str, engine: Engine) -> None:
    with transaction(engine, write=True) as connection:
        schema.upgrade(connection)
        schema.downgrade(connection, "base")
    SqlCatalog.open_url(url).close()
    assert tables_of(engine) == {*metadata.tables, VERSION_TABLE}
    assert schema.upgrade_database(engine) == (schema.HEAD, schema.HEAD)


UPGRADE = """
import sys
from bcd_registry.catalog.engines import engine_of
from bcd_registry.catalog.schema import upgrade_database

engine = engine_of(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
print(*upgrade_database(engine))
engine.dispose()
"""
OPEN = """
import sys
from bcd_registry.catalog.sql import SqlCatalog

print("ready", flush=True)
sys.stdin.readline()
SqlCatalog.open_url(sys.argv[1]).close()
print("open")
"""


def at_once(script: str, url: str) -> list[str]:
    """What two processes print that do the same at the same time."""
    command = [sys.executable, "-W", "error", "-c", script, url]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    printed = [process.communicate(timeout=120)[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    return sorted(printed)


def test_two_processes_that_upgrade_at_once_do_it_once(url: str, engine: Engine) -> None:
    load_dump(engine, GOLDEN[0])
    assert at_once(UPGRADE, url) == [f"0001 {schema.HEAD}", f"{schema.HEAD} {schema.HEAD}"]
    with SqlCatalog.open_url(url, create=False) as catalog:
        assert len(catalog.list_records()) == len(RecordState)


def test_two_processes_that_open_a_fresh_database_at_once_make_it_once(url: str) -> None:
    assert at_once(OPEN, url) == ["open", "open"]
    SqlCatalog.open_url(url, create=False).close()


def test_migrations_come_from_the_wheel_or_from_the_source_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = schema.migrations_folder()
    packaged = tmp_path / "bcd_registry" / "_migrations"
    packaged.mkdir(parents=True)
    (packaged / "env.py").write_text("")
    monkeypatch.setattr("importlib.resources.files", lambda name: tmp_path / name)
    assert schema.migrations_folder() == packaged
    (packaged / "env.py").unlink()
    assert schema.migrations_folder() == source
    monkeypatch.setattr(schema, "__file__", str(tmp_path / "a" / "b" / "c" / "schema.py"))
    with pytest.raises(RegistryError, match="migrations of the catalog are missing"):
        schema.migrations_folder()
