"""Engines of SQLite: how a connection is opened, how a transaction begins, what its errors mean."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, QueuePool, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from bcd_registry.errors import NotFound, RegistryError, StoreDenied, StoreUnavailable

BUSY_TIMEOUT_S = 30.0
"""How long a writer waits for another one before it gives up."""

_WRITES = "bcd_writes"
_ERRORS: tuple[tuple[str, type[RegistryError], str, str], ...] = (
    ("SQLITE_BUSY", StoreUnavailable, "is locked by another process", "wait for it to end, then run the command again"),
    ("SQLITE_LOCKED", StoreUnavailable, "is locked by another process", "wait for it to end, then run the command again"),
    ("SQLITE_FULL", StoreUnavailable, "has no space left", "free some space, or move the home with BCD_HOME"),
    ("SQLITE_READONLY", StoreDenied, "is read-only for this user", "give this user write access, or set BCD_HOME"),
    ("SQLITE_PERM", StoreDenied, "may not be used by this user", "give this user write access, or set BCD_HOME"),
    ("SQLITE_CANTOPEN", StoreDenied, "cannot be opened", "it must be a file that this user may write; or set BCD_HOME"),
    ("SQLITE_NOTADB", StoreUnavailable, "is not a database", "move the file away, or set BCD_HOME"),
    ("SQLITE_CORRUPT", StoreUnavailable, "is damaged", "restore it from a backup, or move it away"),
    ("SQLITE_CONSTRAINT_FOREIGNKEY", NotFound, "does not know what the row refers to", "store what it refers to first"),
)


def file_engine(path: Path, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> Engine:
    """An engine over the file: WAL, foreign keys, `busy_timeout_s` of patience with other processes."""
    url = URL.create("sqlite", database=str(path))
    return _prepared(create_engine(url, connect_args={"timeout": busy_timeout_s}))


def memory_engine() -> Engine:
    """An engine over one connection that threads take in turn; its database ends with the engine."""
    options: dict[str, Any] = {"poolclass": QueuePool, "pool_size": 1, "max_overflow": 0}
    return _prepared(create_engine("sqlite://", connect_args={"check_same_thread": False}, **options))


@contextlib.contextmanager
def transaction(engine: Engine, *, write: bool) -> Iterator[Connection]:
    """One transaction: committed at the end of the block, rolled back when it raises.

    A writer takes SQLite's write lock at once, so that it never has to give up what it has read.

    Raises:
        StoreUnavailable: Locked for too long, full, damaged.
        StoreDenied: The file is not this user's to use.
        NotFound: A row refers to one that is not there.
    """
    try:
        with engine.execution_options(**{_WRITES: write}).begin() as connection:
            yield connection
    except (DBAPIError, PoolTimeout) as error:
        raise store_error(error, engine) from error


def store_error(error: DBAPIError | PoolTimeout, engine: Engine) -> RegistryError:
    """The error to raise for one of the database."""
    where = f"the catalog {engine.url.database or 'in memory'}"
    code = getattr(getattr(error, "orig", None), "sqlite_errorname", "")
    for prefix, kind, message, hint in _ERRORS:
        if code.startswith(prefix):
            return kind(f"{where} {message}", hint=hint)
    detail = str(getattr(error, "orig", None) or error).splitlines()[0]
    return StoreUnavailable(f"{where} failed: {detail}", hint="check the disk and the file")


def _prepared(engine: Engine) -> Engine:
    event.listen(engine, "connect", _on_connect)
    event.listen(engine, "begin", _on_begin)
    return engine


def _on_connect(connection: sqlite3.Connection, _record: object) -> None:
    # The driver's own transactions begin late and leave DDL out; ours begin in `_on_begin`.
    connection.isolation_level = None
    connection.execute("PRAGMA foreign_keys = ON")
    if connection.execute("PRAGMA journal_mode").fetchone()[0] == "delete":
        connection.execute("PRAGMA journal_mode = WAL")


def _on_begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get(_WRITES, True)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
