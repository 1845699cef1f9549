"""The statements of the catalog. What SQLite and PostgreSQL spell differently is chosen here, by the connection's dialect."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any

from sqlalchemy import (
    ARRAY,
    Column,
    ColumnElement,
    CompoundSelect,
    Connection,
    Double,
    Select,
    Table,
    Text,
    Update,
    and_,
    any_,
    case,
    exists,
    func,
    literal,
    or_,
    select,
    union,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.dml import ReturningInsert

from bcd_registry.model import Lease, RecordState

from . import tables

Insert = sqlite.Insert | postgresql.Insert

_STATE_ORDER = {state.value: rank for rank, state in enumerate(RecordState)}
_HEX = frozenset("0123456789abcdef")


def insert_into(connection: Connection, table: Table) -> Insert:
    """An insert that can say what to do on a conflict; the two dialects spell it alike."""
    return sqlite.insert(table) if connection.dialect.name == "sqlite" else postgresql.insert(table)


def replace_in(connection: Connection, table: Table) -> Insert:
    """An insert that replaces the row of the same primary key."""
    insert, key = insert_into(connection, table), table.primary_key.columns.keys()
    return insert.on_conflict_do_update(index_elements=key, set_=_excluded(insert, table))


def upsert_record(connection: Connection) -> Insert:
    """An insert of a record that replaces one which is not further on."""
    table = tables.records
    insert = insert_into(connection, table)
    further = _state_rank(insert.excluded.state) >= _state_rank(table.c.state)
    return insert.on_conflict_do_update(index_elements=["id"], set_=_excluded(insert, table), where=further)


def among(connection: Connection, column: ColumnElement[str], keys: Iterable[str]) -> ColumnElement[bool]:
    """Whether the column is one of the keys: one parameter, however many there are."""
    values = sorted(set(keys))
    if connection.dialect.name == "sqlite":
        return column.in_(select(func.json_each(json.dumps(values)).table_valued("value").c.value))
    return column == any_(literal(values, ARRAY(Text)))


def begins_with(column: Column[str], prefix: str) -> ColumnElement[bool]:
    """Whether a hex digest begins with the prefix; a range, since LIKE uses no index."""
    prefix = prefix.lower()
    return and_(column >= prefix, column < f"{prefix}g") if set(prefix) <= _HEX else column.is_(None)


def relatives(connection: Connection, clusters: Iterable[str], anchors: Iterable[str]) -> Select[Any]:
    """Workloads in the clusters or with the anchors that have a usable record; all but their descriptions, which are long."""
    table, records = tables.workloads, tables.records.c
    usable = exists().where(records.workload_key == table.c.key, records.state != RecordState.QUARANTINED.value)
    columns = [column for column in table.c if column.name != "description"]
    return select(*columns).where(table.c.key.in_(_keys(connection, (), clusters, anchors)), usable)


def best_records(
    connection: Connection, workloads: Iterable[str], clusters: Iterable[str], anchors: Iterable[str], per_workload: int
) -> Select[Any]:
    """The best records of each environment and workload, of those named or in the clusters or with the anchors.

    They are ranked within the index, and only those that are wanted are read.
    """
    table = tables.records
    ranked = _ranked(table.c.workload_key.in_(_keys(connection, workloads, clusters, anchors))).subquery("ranked")
    order = (table.c.workload_key, table.c.environment_key, ranked.c.place)
    return select(table).join(ranked, ranked.c.id == table.c.id).where(ranked.c.place <= per_workload).order_by(*order)


def beaten_records(keep: int) -> Select[Any]:
    """Ids of the records that `keep` better ones beat, but for those of pinned networks."""
    tasks, pins = tables.network_tasks.c, tables.pins.c
    pinned = select(tasks.workload_key).where(tasks.network == pins.network, tasks.version == pins.version)
    ranked = _ranked(tables.records.c.workload_key.not_in(pinned)).subquery("ranked")
    return select(ranked.c.id).where(ranked.c.place > keep).order_by(ranked.c.id)


def locked_records(connection: Connection, ids: Iterable[str], *, as_they_are: bool = False) -> Select[Any]:
    """Those of the ids that are there, locked in one order, so that no two writers wait for each other in a circle.

    Whoever changes records or what was refuted of them does this first.

    Args:
        as_they_are: The records are only referred to; others may do so as well.
    """
    column = tables.records.c.id
    found = select(column).where(among(connection, column, ids)).order_by(column)
    return found.with_for_update(read=as_they_are, key_share=as_they_are)


def acquire_lease(connection: Connection, name: str, holder: str, ttl_s: float) -> ReturningInsert[Any]:
    """Take a lease that is free, expired or the holder's own; returns its row, or none.

    Its row is never deleted, so that the token only grows.
    """
    table = tables.leases
    insert = insert_into(connection, table)
    now, own = _now(connection), table.c.holder == holder
    values: dict[str, Any] = {"holder": holder, "expires_at": now + literal(ttl_s, Double)}
    return (
        insert.values(name=name, token=1, **values)
        .on_conflict_do_update(
            index_elements=["name"],
            set_={**values, "token": case((own, table.c.token), else_=table.c.token + 1)},
            where=or_(own, table.c.expires_at <= now),
        )
        .returning(*table.c)
    )


def renew_lease(connection: Connection, lease: Lease, ttl_s: float) -> Update:
    """Let it last longer, unless it went to another; returns its row, or none."""
    return _of(lease).values(expires_at=_now(connection) + literal(ttl_s, Double)).returning(*tables.leases.c)


def release_lease(lease: Lease) -> Update:
    """Let it be expired, unless it went to another."""
    return _of(lease).values(expires_at=0.0)


def held_leases(connection: Connection, names: Iterable[str]) -> Select[Any]:
    """The rows of the leases, which nobody can take over before this transaction ends."""
    table = tables.leases
    return select(table).where(among(connection, table.c.name, names)).order_by(table.c.name).with_for_update(read=True)


def _excluded(insert: Insert, table: Table) -> dict[str, Any]:
    return {column.name: insert.excluded[column.name] for column in table.c if not column.primary_key}


def _keys(
    connection: Connection, workloads: Iterable[str], clusters: Iterable[str], anchors: Iterable[str]
) -> CompoundSelect[Any]:
    """Keys of workloads, in three look-ups: no index serves an OR over three columns."""
    known = tables.workloads.c
    lookups = ((known.key, workloads), (known.cluster, clusters), (known.anchor, anchors))
    return union(*(select(known.key).where(among(connection, column, keys)) for column, keys in lookups))


def _state_rank(state: ColumnElement[str]) -> ColumnElement[int]:
    return case(_STATE_ORDER, value=state)


def _ranked(chosen: ColumnElement[bool]) -> Select[Any]:
    """Id and place, from 1, of the usable records within their workload and environment."""
    table = tables.records.c
    order = (_state_rank(table.state).desc(), table.median_s, table.id)
    place = func.row_number().over(partition_by=(table.workload_key, table.environment_key), order_by=order)
    return select(table.id, place.label("place")).where(chosen, table.state != RecordState.QUARANTINED.value)


def _of(lease: Lease) -> Update:
    table = tables.leases
    return update(table).where(table.c.name == lease.name, table.c.holder == lease.holder, table.c.token == lease.token)


def _now(connection: Connection) -> ColumnElement[float]:
    """Unix seconds by the database's own clock, not the transaction's start; SQLite's is this machine's."""
    if connection.dialect.name == "sqlite":
        return literal(time.time(), Double)
    return func.date_part("epoch", func.clock_timestamp(), type_=Double)
