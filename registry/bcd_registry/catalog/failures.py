"""What an error of a database means: SQLite's names and PostgreSQL's SQLSTATEs, as the registry's errors."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sqlalchemy import URL, Engine
from sqlalchemy.exc import DataError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from bcd_registry.errors import NotFound, RegistryError, SchemaMismatch, StoreDenied, StoreUnavailable


@dataclass(frozen=True, slots=True)
class _Meaning:
    """The error to raise. In `message` and `hint`, `{role}`, `{server}` and `{database}` are those of the URL."""

    kind: type[RegistryError]
    message: str
    hint: str


_LOCKED = "is locked by another process"
_WAIT = "wait for it to end, then run the command again"
_UNKNOWN = _Meaning(NotFound, "does not know what the row refers to", "store what it refers to first")

_SQLITE: tuple[tuple[str, _Meaning], ...] = (
    ("SQLITE_BUSY", _Meaning(StoreUnavailable, _LOCKED, _WAIT)),
    ("SQLITE_LOCKED", _Meaning(StoreUnavailable, _LOCKED, _WAIT)),
    ("SQLITE_FULL", _Meaning(StoreUnavailable, "has no space left", "free some space, or move the home with BCD_HOME")),
    ("SQLITE_READONLY", _Meaning(StoreDenied, "is read-only for this user", "give this user write access, or set BCD_HOME")),
    ("SQLITE_PERM", _Meaning(StoreDenied, "may not be used by this user", "give this user write access, or set BCD_HOME")),
    (
        "SQLITE_CANTOPEN",
        _Meaning(StoreDenied, "cannot be opened", "it must be a file that this user may write, or set BCD_HOME"),
    ),
    ("SQLITE_NOTADB", _Meaning(StoreUnavailable, "is not a database", "move the file away, or set BCD_HOME")),
    ("SQLITE_CORRUPT", _Meaning(StoreUnavailable, "is damaged", "restore it from a backup, or move it away")),
    ("SQLITE_CONSTRAINT_FOREIGNKEY", _UNKNOWN),
)

_RIGHTS = "ask its owner to GRANT the role {role} what it needs in the database {database}"
_URL = "check the database's URL"
_BUSY_SERVER = _Meaning(StoreUnavailable, "has no connection left to give", "close other clients, or raise max_connections")
_STARTING = _Meaning(StoreUnavailable, "is starting up or shutting down", "wait a moment, then run the command again")
_AGAIN = "nothing of this write was stored; run the command again"

_LOST = _Meaning(StoreUnavailable, "does not answer: the connection was lost", "check that {server} runs, then try again")

_POSTGRES: tuple[tuple[str, _Meaning], ...] = (
    ("08", _LOST),
    ("23503", _UNKNOWN),
    ("25006", _Meaning(StoreDenied, "is a read-only replica, or read-only for the role {role}", "give the URL of the primary")),
    ("42501", _Meaning(StoreDenied, "does not give the role {role} the rights for this", _RIGHTS)),
    ("28", _Meaning(StoreDenied, "refuses the role {role}", "check the role and its password in the database's URL")),
    (
        "3D000",
        _Meaning(StoreUnavailable, "is not there: {server} has no such database", "make it: `createdb {database}`"),
    ),
    ("40001", _Meaning(StoreUnavailable, "was changed by another process in between", _AGAIN)),
    ("40P01", _Meaning(StoreUnavailable, "was changed by another process in between", _AGAIN)),
    ("42P01", _Meaning(SchemaMismatch, "lacks a table of this release", "run `bcd-registry db upgrade`")),
    ("42703", _Meaning(SchemaMismatch, "lacks a column of this release", "run `bcd-registry db upgrade`")),
    ("53100", _Meaning(StoreUnavailable, "has no space left", "free some space on {server}")),
    ("53300", _BUSY_SERVER),
    ("55P03", _Meaning(StoreUnavailable, _LOCKED, _WAIT)),
    ("57014", _Meaning(StoreUnavailable, "took too long to answer", "try again when {server} has less to do")),
    ("57P", _STARTING),
    ("XX001", _Meaning(StoreUnavailable, "is damaged", "restore it from a backup")),
    ("XX002", _Meaning(StoreUnavailable, "has a damaged index", "REINDEX it, or restore it from a backup")),
)

# A connection that was never made has no SQLSTATE: only the words of libpq and of the server.
_CONNECTING: tuple[tuple[str, _Meaning], ...] = (
    ("password authentication failed", _Meaning(StoreDenied, "refuses the password of the role {role}", _URL)),
    ("no password supplied", _Meaning(StoreDenied, "wants a password for the role {role}", "put it into the URL or ~/.pgpass")),
    ("no pg_hba.conf entry", _Meaning(StoreDenied, "lets the role {role} not in from here", "ask the owner of {server}")),
    ('role ".*" (does not exist|is not permitted)', _Meaning(StoreDenied, "refuses the role {role}", _URL)),
    ("authentication failed", _Meaning(StoreDenied, "refuses the role {role}", _URL)),
    ("permission denied for database", _Meaning(StoreDenied, "does not let the role {role} connect", _RIGHTS)),
    ('database ".*" does not exist', dict(_POSTGRES)["3D000"]),
    ("too many clients|too many connections|connection slots are reserved", _BUSY_SERVER),
    ("starting up|shutting down|in recovery mode", _STARTING),
    ("resolve host|translate host", _Meaning(StoreUnavailable, "does not answer: no such host", _URL)),
    ("refused", _Meaning(StoreUnavailable, "does not answer: connection refused", f"{_URL}, and that the server runs")),
    (
        "timeout|timed out",
        _Meaning(StoreUnavailable, "does not answer in time", f"{_URL}, the network and the server"),
    ),
)
_POOL = _Meaning(StoreUnavailable, "is in use by all threads of this process", "ask for less at the same time")


def catalog_name(url: URL) -> str:
    """The catalog as messages name it: never with a password."""
    if url.get_backend_name() == "sqlite":
        return f"the catalog {url.database or 'in memory'}"
    return f"the catalog {url.database or url.username or ''} at {_server(url)}"


def store_error(error: DBAPIError | PoolTimeout, engine: Engine) -> RegistryError:
    """The error to raise for one of the database."""
    if isinstance(error, PoolTimeout):
        return _raised(_POOL, engine.url)
    meaning = _meaning_in_sqlite(error) if engine.dialect.name == "sqlite" else _meaning_in_postgres(error)
    if meaning is not None:
        return _raised(meaning, engine.url)
    detail = next(iter(str(error.orig).splitlines()), "") or type(error.orig).__name__
    kind = RegistryError if isinstance(error, DataError) else StoreUnavailable
    return kind(f"{catalog_name(engine.url)} failed: {detail}", hint="check the database and its disk")


def _meaning_in_sqlite(error: DBAPIError) -> _Meaning | None:
    code = getattr(error.orig, "sqlite_errorname", "")
    return next((meaning for prefix, meaning in _SQLITE if code.startswith(prefix)), None)


def _meaning_in_postgres(error: DBAPIError) -> _Meaning | None:
    code = getattr(error.orig, "sqlstate", None)
    if code is None:
        text = str(error.orig)
        found = next((meaning for words, meaning in _CONNECTING if re.search(words, text)), None)
        return found or (_LOST if error.connection_invalidated else None)
    return next((meaning for prefix, meaning in _POSTGRES if code.startswith(prefix)), None)


def _raised(meaning: _Meaning, url: URL) -> RegistryError:
    names = {"role": url.username or "of this user", "server": _server(url), "database": url.database or ""}
    message, hint = (text.format(**names) for text in (meaning.message, meaning.hint))
    return meaning.kind(f"{catalog_name(url)} {message}", hint=hint)


def _server(url: URL) -> str:
    """Host and port, or what libpq takes in place of a host."""
    if url.host is None:
        host = url.query.get("host", "the local socket")
        return host if isinstance(host, str) else ",".join(host)
    host = f"[{url.host}]" if ":" in url.host else url.host
    return f"{host}:{url.port or 5432}"
