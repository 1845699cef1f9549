"""A catalog looked at by its URL: its revision, and what a user may do there. Nothing is made, and nothing is left behind."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator

from sqlalchemy import Engine, delete, false, literal, select, update

from .engines import engine_of, transaction
from .schema import current_revision
from .tables import environments, metadata


class _UndoneError(Exception):
    """Ends a transaction that is not to be committed."""


def read_revision(url: str, connect_timeout_s: float) -> str | None:
    """The database's revision, None when it has none of our tables.

    Raises:
        SchemaMismatch: It has some, but no revision.
    """
    with _engine(url, connect_timeout_s) as engine, transaction(engine, write=False) as connection:
        return current_revision(connection)


def try_reading(url: str, connect_timeout_s: float) -> None:
    """Read every table.

    Raises:
        StoreDenied: One may not be read.
        SchemaMismatch: One is not there.
    """
    with _engine(url, connect_timeout_s) as engine, transaction(engine, write=False) as connection:
        for table in metadata.sorted_tables:
            connection.execute(select(literal(1)).select_from(table).limit(1))


def try_writing(url: str, connect_timeout_s: float) -> None:
    """Insert, change and delete in every table, and take all of it back.

    Raises:
        StoreDenied: One may not be written, or the whole database.
        StoreUnavailable: It is full, or stays locked.
        SchemaMismatch: A table is not there.
    """
    row = {"key": secrets.token_hex(32), "fields": "{}"}
    with (
        contextlib.suppress(_UndoneError),
        _engine(url, connect_timeout_s) as engine,
        transaction(engine, write=True) as connection,
    ):
        for table in metadata.sorted_tables:
            # Rights are checked although no row is concerned.
            none = select(table).where(false())
            connection.execute(table.insert().from_select(list(table.columns.keys()), none))
            connection.execute(update(table).where(false()).values({column.name: column for column in table.columns}))
            connection.execute(delete(table).where(false()))
        connection.execute(environments.insert(), row)
        connection.execute(delete(environments).where(environments.c.key == row["key"]))
        raise _UndoneError


@contextlib.contextmanager
def _engine(url: str, connect_timeout_s: float) -> Iterator[Engine]:
    engine = engine_of(url, connect_timeout_s)
    try:
        yield engine
    finally:
        engine.dispose()
