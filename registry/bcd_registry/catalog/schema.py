"""The revision of a database: which one it has, whether this release can use it, and how to bring it there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine, func, inspect, select, text

from bcd_registry.errors import RegistryError, SchemaMismatch, StoreUnavailable

from .engines import transaction
from .failures import catalog_name
from .tables import VERSION_TABLE, metadata

if TYPE_CHECKING:
    from alembic.config import Config

HEAD = "0004"
"""The revision that this release reads and writes; a test compares it with the newest migration."""

_MIGRATION_LOCK = 0x6263645F72656769
"""The advisory lock of PostgreSQL that one migrates under."""


def migrations_folder() -> Path:
    """The folder with alembic's `env.py`: package data in a wheel, `migrations` in the source tree.

    Raises:
        RegistryError: Neither is there.
    """
    packaged = Path(str(resources.files("bcd_registry"))) / "_migrations"
    source = Path(__file__).resolve().parents[3] / "migrations"
    for folder in (packaged, source):
        if (folder / "env.py").is_file():
            return folder
    raise RegistryError("the migrations of the catalog are missing", hint="install bcd-registry again")


def current_revision(connection: Connection) -> str | None:
    """The database's revision, or None when it has none of our tables.

    Raises:
        SchemaMismatch: It has some, but no revision, or several.
    """
    names = set(inspect(connection).get_table_names())
    if VERSION_TABLE not in names:
        if names & set(metadata.tables):
            raise _mismatch(connection, "has tables of a registry but no revision")
        return None
    found = list(connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalars())
    if not found:
        return None
    if len(found) > 1:
        raise _mismatch(connection, f"has {len(found)} revisions at once")
    return str(found[0])


def require_head(connection: Connection) -> None:
    """Do nothing when the database is what this release reads and writes.

    Raises:
        SchemaMismatch: It is older, newer, or of no known revision.
    """
    revision = current_revision(connection)
    if revision == HEAD:
        return
    if revision is None:
        raise _mismatch(connection, f"has no tables yet, this release needs {HEAD}")
    if not revision.isdigit() or len(revision) != len(HEAD):
        raise _mismatch(connection, f"has the unknown revision {revision!r}, this release needs {HEAD}")
    if revision > HEAD:
        name, hint = (
            catalog_name(connection.engine.url),
            "install a newer bcd-registry; `bcd-registry db upgrade` cannot go back",
        )
        raise SchemaMismatch(f"{name} has revision {revision}, made by a newer release; this one reads {HEAD}", hint=hint)
    raise _mismatch(connection, f"has revision {revision}, this release needs {HEAD}")


def create_or_check(engine: Engine) -> None:
    """Make the tables of a fresh database, by migration; refuse any other that is not at `HEAD`.

    Two processes that open a fresh one together are safe: the second waits, then finds it made.

    Raises:
        SchemaMismatch: It is older, newer, or of no known revision.
    """
    with transaction(engine, write=False) as connection:
        fresh = current_revision(connection) is None
        if not fresh:
            require_head(connection)
    if fresh:
        with _migration(engine) as connection:
            if current_revision(connection) is None:
                upgrade(connection)
            require_head(connection)


def check(engine: Engine) -> None:
    """Refuse a database that is not at `HEAD`, and make nothing.

    Raises:
        StoreUnavailable: There is no such file.
        SchemaMismatch: It has no tables of a registry, or is older, newer, or of no known revision.
    """
    if engine.dialect.name == "sqlite" and engine.url.database and not Path(engine.url.database).exists():
        raise StoreUnavailable(
            f"{catalog_name(engine.url)} is not there", hint="check the path, or run `bcd-registry tune` first"
        )
    with transaction(engine, write=False) as connection:
        require_head(connection)


def upgrade_database(engine: Engine) -> tuple[str | None, str]:
    """Bring the database to `HEAD` in one transaction; returns the revisions before and after.

    Of two processes that do so at once, the second waits and then finds it done.

    Raises:
        SchemaMismatch: It is newer, or of no known revision.
    """
    with _migration(engine) as connection:
        before = current_revision(connection)
        if before not in (None, *known_revisions()):
            require_head(connection)
        upgrade(connection)
        return before, HEAD


def known_revisions() -> list[str]:
    """Every revision with a migration, newest first."""
    from alembic.script import ScriptDirectory

    return [script.revision for script in ScriptDirectory(str(migrations_folder())).walk_revisions()]


def upgrade(connection: Connection, revision: str = "head") -> None:
    """Run the migrations up to `revision` on the connection, inside its transaction."""
    from alembic import command

    command.upgrade(_config(connection), revision)


def downgrade(connection: Connection, revision: str) -> None:
    """Run the migrations down to `revision` on the connection, inside its transaction."""
    from alembic import command

    command.downgrade(_config(connection), revision)


@contextlib.contextmanager
def _migration(engine: Engine) -> Iterator[Connection]:
    """A transaction that no other migration overlaps, and that may take its time."""
    with transaction(engine, write=True) as connection:
        if connection.dialect.name == "postgresql":
            limits = [func.set_config(name, "0", True) for name in ("lock_timeout", "statement_timeout")]
            connection.execute(select(*limits))
            connection.execute(select(func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
        yield connection


def _config(connection: Connection) -> Config:
    # Alembic is imported where it is used: a database that is at `HEAD` opens without it.
    from alembic.config import Config

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(migrations_folder()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def _mismatch(connection: Connection, what: str) -> SchemaMismatch:
    return SchemaMismatch(f"{catalog_name(connection.engine.url)} {what}", hint="run `bcd-registry db upgrade`")
