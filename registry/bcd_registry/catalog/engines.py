"""Engines of SQLite and PostgreSQL: how a connection is opened and how a transaction begins."""

from __future__ import annotations

import contextlib
import math
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, QueuePool, create_engine, event, make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from bcd_registry.errors import ConfigError, RegistryError
from bcd_registry.urls import checked_database_url, sqlite_path

from .failures import catalog_name, store_error

BUSY_TIMEOUT_S = 30.0
"""How long a writer waits for another one before it gives up."""

CONNECT_TIMEOUT_S = 5.0
"""How long a server may take to let us in."""

STATEMENT_TIMEOUT_S = 120.0
"""How long PostgreSQL may work on one statement; a connection that waits that long in a transaction is closed."""

_WRITES = "bcd_writes"
_WAL_POLL_S = 0.005
_URLS = "postgresql+psycopg://ROLE:PASSWORD@HOST:PORT/DATABASE or sqlite:///FILE"


def engine_of(url: str, connect_timeout_s: float = CONNECT_TIMEOUT_S) -> Engine:
    """An engine over the database that the URL names; nothing is opened yet.

    Raises:
        ConfigError: It is no URL of PostgreSQL or of a SQLite file, or PostgreSQL's driver is not installed.
    """
    try:
        checked = checked_database_url(url)
    except ValueError as error:  # says nothing of the URL itself, which may hold a password
        raise ConfigError(f"the database's URL {error}", hint=f"give {_URLS}") from None
    if checked.startswith("sqlite:"):
        return file_engine(sqlite_path(checked))
    try:
        return postgres_engine(make_url(checked), connect_timeout_s)
    except ImportError as error:
        raise ConfigError("PostgreSQL's driver is not installed", hint="pip install 'psycopg[binary]'") from error


def file_engine(path: Path, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> Engine:
    """An engine over the file: WAL, foreign keys, `busy_timeout_s` of patience with other processes."""
    url = URL.create("sqlite", database=str(path))
    return _prepared(create_engine(url, connect_args={"timeout": busy_timeout_s}))


def memory_engine() -> Engine:
    """An engine over one connection that threads take in turn; its database ends with the engine."""
    options: dict[str, Any] = {"poolclass": QueuePool, "pool_size": 1, "max_overflow": 0}
    return _prepared(create_engine("sqlite://", connect_args={"check_same_thread": False}, **options))


def postgres_engine(url: URL, connect_timeout_s: float = CONNECT_TIMEOUT_S) -> Engine:
    """An engine over PostgreSQL: few connections, each tried before it is used, and a limit to every wait.

    Raises:
        ImportError: The driver is not installed.
    """
    session = {
        "lock_timeout": f"{BUSY_TIMEOUT_S:.0f}s",
        "statement_timeout": f"{STATEMENT_TIMEOUT_S:.0f}s",
        "idle_in_transaction_session_timeout": f"{STATEMENT_TIMEOUT_S:.0f}s",
        # A lookup reads some thousand rows that lie anywhere: by their indexes, and not by reading everything.
        "random_page_cost": "1.1",
        "jit": "off",
    }
    options = " ".join(f"-c {name}={value}" for name, value in session.items())
    given: dict[str, Any] = {
        "connect_timeout": max(2, math.ceil(connect_timeout_s)),  # libpq takes whole seconds, and 1 for 2
        "application_name": "bcd-registry",
        "keepalives_idle": 15,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 30_000,
        "prepare_threshold": None,  # a pooler between may give each transaction another server connection
    }
    arguments = {name: value for name, value in given.items() if name not in url.query}
    arguments["options"] = f"{options} {url.query.get('options', '')}".strip()
    pool: dict[str, Any] = {"pool_size": 2, "max_overflow": 6, "pool_timeout": BUSY_TIMEOUT_S, "pool_use_lifo": True}
    return create_engine(url, connect_args=arguments, pool_pre_ping=True, **pool)


@contextlib.contextmanager
def transaction(engine: Engine, *, write: bool) -> Iterator[Connection]:
    """One transaction: committed at the end of the block, rolled back when it raises.

    A reader sees one state of the database, whatever others write meanwhile. In SQLite a writer takes the write lock at
    once, so that it never has to give up what it has read; in PostgreSQL each of its statements sees what is committed.

    Raises:
        StoreUnavailable: It does not answer, is locked for too long, full or damaged.
        StoreDenied: It is not this user's to use.
        NotFound: A row refers to one that is not there.
        RegistryError: A value cannot be stored.
    """
    options: dict[str, Any] = {_WRITES: write}
    if engine.dialect.name == "postgresql":
        options = {"isolation_level": "READ COMMITTED" if write else "REPEATABLE READ"}
    try:
        with engine.connect() as connection, connection.execution_options(**options).begin():
            yield connection
    except (DBAPIError, PoolTimeout) as error:
        raise store_error(error, engine) from error
    except UnicodeEncodeError as error:
        message = f"{catalog_name(engine.url)} takes no text that is not Unicode"
        raise RegistryError(message, hint="use another name: this one is not UTF-8") from error


def _prepared(engine: Engine) -> Engine:
    event.listen(engine, "connect", _on_connect)
    event.listen(engine, "begin", _on_begin)
    return engine


def _on_connect(connection: sqlite3.Connection, _record: object) -> None:
    # The driver's own transactions begin late and leave DDL out; ours begin in `_on_begin`.
    connection.isolation_level = None
    connection.execute("PRAGMA foreign_keys = ON")
    _enter_wal(connection)


def _enter_wal(connection: sqlite3.Connection) -> None:
    """Write ahead from now on. The change wants the file for itself, and SQLite does not wait for that by itself."""
    ends_at = time.monotonic() + connection.execute("PRAGMA busy_timeout").fetchone()[0] / 1000
    while connection.execute("PRAGMA journal_mode").fetchone()[0] == "delete":
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if not error.sqlite_errorname.startswith("SQLITE_BUSY") or time.monotonic() > ends_at:
                raise
            time.sleep(_WAL_POLL_S)


def _on_begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get(_WRITES, True)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
