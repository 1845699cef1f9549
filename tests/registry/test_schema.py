from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, inspect

from bcd_registry.catalog import schema
from bcd_registry.catalog.engines import file_engine, transaction
from bcd_registry.catalog.sql import SqlCatalog
from bcd_registry.catalog.tables import VERSION_TABLE, metadata
from bcd_registry.errors import RegistryError, SchemaMismatch
from bcd_registry.model import RecordState
from bcd_registry.staleness import environment_key
from bcd_registry.testing.catalog_contract import stored
from bcd_registry.testing.values import ENVIRONMENT, hex_of, make_workload

from .golden import make_database

GOLDEN = sorted(make_database.GOLDEN.glob("revision_*.sql"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "catalog.db"


@pytest.fixture
def engine(path: Path) -> Iterator[Engine]:
    engine = file_engine(path)
    yield engine
    engine.dispose()


def set_revision(path: Path, *revisions: str) -> None:
    SqlCatalog.open_file(path).close()
    connection = sqlite3.connect(path)
    connection.execute(f"DELETE FROM {VERSION_TABLE}")
    connection.executemany(f"INSERT INTO {VERSION_TABLE} VALUES (?)", [(revision,) for revision in revisions])
    connection.commit()
    connection.close()


def load_dump(path: Path, dump: Path) -> None:
    connection = sqlite3.connect(path)
    connection.executescript(dump.read_text())
    connection.close()


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
def test_a_golden_database_is_upgraded_and_then_used(path: Path, engine: Engine, dump: Path) -> None:
    load_dump(path, dump)
    revision = dump.stem.removeprefix("revision_")
    assert schema.upgrade_database(engine) == (revision, schema.HEAD)
    key = environment_key(ENVIRONMENT)
    with SqlCatalog.open_file(path) as catalog:
        records = make_database.records(key)
        assert catalog.get_environment(key).as_json() == ENVIRONMENT.as_json()
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


def test_every_revision_has_a_golden_database() -> None:
    assert [dump.stem.removeprefix("revision_") for dump in GOLDEN] == sorted(schema.known_revisions())


def test_a_fresh_database_is_made_at_the_current_revision(path: Path, engine: Engine) -> None:
    SqlCatalog.open_file(path).close()
    with transaction(engine, write=False) as connection:
        assert schema.current_revision(connection) == schema.HEAD


@pytest.mark.parametrize("dump", GOLDEN[:-1], ids=lambda path: path.stem)
def test_an_old_golden_database_is_refused_until_it_is_upgraded(path: Path, engine: Engine, dump: Path) -> None:
    load_dump(path, dump)
    message = f"has revision {dump.stem.removeprefix('revision_')}, this release needs {schema.HEAD}"
    with pytest.raises(SchemaMismatch, match=message) as caught:
        SqlCatalog.open_file(path)
    assert "bcd-registry db upgrade" in caught.value.hint
    schema.upgrade_database(engine)
    SqlCatalog.open_file(path).close()


def test_going_down_and_up_again_keeps_all_but_the_new_tables(path: Path, engine: Engine) -> None:
    load_dump(path, GOLDEN[-1])
    with transaction(engine, write=True) as connection:
        schema.downgrade(connection, "0001")
        assert "bcd_refutations" not in inspect(connection).get_table_names()
        schema.upgrade(connection)
    key = environment_key(ENVIRONMENT)
    with SqlCatalog.open_file(path) as catalog:
        assert {record.id for record, _ in catalog.list_records()} == {record.id for record in make_database.records(key)}
        assert catalog.find_refutations([make_workload("w1", cluster="c").cluster]) == []


@pytest.mark.parametrize(
    ("revisions", "message", "hint"),
    [
        (("0000",), "has revision 0000, this release needs", "bcd-registry db upgrade"),
        (("9999",), "made by a newer release", "install a newer bcd-registry; `bcd-registry db upgrade`"),
        (("8c6f1a2b3d4e",), "unknown revision '8c6f1a2b3d4e'", "bcd-registry db upgrade"),
        (("0001", "9999"), "has 2 revisions at once", "bcd-registry db upgrade"),
    ],
)
def test_another_revision_is_refused(path: Path, revisions: tuple[str, ...], message: str, hint: str) -> None:
    set_revision(path, *revisions)
    before = path.read_bytes()
    with pytest.raises(SchemaMismatch, match=message) as caught:
        SqlCatalog.open_file(path)
    assert path.read_bytes() == before
    assert hint in caught.value.hint
    assert str(path) in caught.value.message


@pytest.mark.parametrize("revision", ["0000", "9999", "8c6f1a2b3d4e"])
def test_what_cannot_be_upgraded_is_left_alone(path: Path, engine: Engine, revision: str) -> None:
    set_revision(path, revision)
    before = path.read_bytes()
    with pytest.raises(SchemaMismatch):
        schema.upgrade_database(engine)
    assert path.read_bytes() == before


def test_tables_without_a_revision_are_refused(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE bcd_records (id TEXT)")
    connection.close()
    with pytest.raises(SchemaMismatch, match="no revision"):
        SqlCatalog.open_file(path)


def test_tables_of_another_program_are_left_alone(path: Path, engine: Engine) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE alembic_version (version_num TEXT)")
    connection.execute("CREATE TABLE runs (run_uuid TEXT)")
    connection.close()
    SqlCatalog.open_file(path).close()
    assert tables_of(engine) == {"alembic_version", "runs", VERSION_TABLE, *metadata.tables}


def test_a_database_without_our_tables_is_fresh(path: Path, engine: Engine) -> None:
    with transaction(engine, write=True) as connection:
        schema.upgrade(connection)
        schema.downgrade(connection, "base")
    SqlCatalog.open_file(path).close()
    assert tables_of(engine) == {*metadata.tables, VERSION_TABLE}
    assert schema.upgrade_database(engine) == (schema.HEAD, schema.HEAD)


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
