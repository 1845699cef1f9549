"""The statements of the catalog. What SQLite and PostgreSQL spell differently is chosen here, by the connection's dialect."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
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
    """Workloads in the clusters or with the anchors, a row for each environment in which they have usable records.

    All but their descriptions, which are long; the records are counted within their index, and joined to workloads that are
    looked up as they are: no database then thinks of reading all workloads.
    """
    table, records = tables.workloads, tables.records.c
    place = (records.workload_key, records.environment_key)
    usable = records.state != RecordState.QUARANTINED.value
    chosen = records.workload_key.in_(_keys(connection, (), clusters, anchors))
    counted = select(*place, func.count().label("n_records")).where(chosen, usable).group_by(*place).subquery("counted")
    columns = [column for column in table.c if column.name != "description"]
    lookups = ((table.c.cluster, clusters), (table.c.anchor, anchors))
    found = union(*(select(*columns).where(among(connection, column, keys)) for column, keys in lookups)).subquery("found")
    return select(*found.c, counted.c.environment_key, counted.c.n_records).join(counted, counted.c.workload_key == found.c.key)


def best_records(
    connection: Connection,
    workloads: Iterable[str],
    clusters: Iterable[str],
    anchors: Iterable[str],
    refuted_in: Sequence[str],
    per_workload: int,
) -> Select[Any]:
    """The best records of each environment and workload, of those named or in the clusters or with the anchors.

    They are ranked within the index, and only those that are wanted are read.
    """
    table = tables.records
    keys = _keys(connection, workloads, clusters, anchors, refuted_in)
    ranked = _ranked(table.c.workload_key.in_(keys)).subquery("ranked")
    order = (table.c.workload_key, table.c.environment_key, ranked.c.place)
    return select(table).join(ranked, ranked.c.id == table.c.id).where(ranked.c.place <= per_workload).order_by(*order)


def beaten_records(keep: int) -> Select[Any]:
    """Ids of the records that `keep` better ones beat, but for those of pinned networks."""
    ranked = _ranked(_unpinned()).subquery("ranked")
    return select(ranked.c.id).where(ranked.c.place > keep).order_by(ranked.c.id)


def still_beaten(connection: Connection, ids: Iterable[str], keep: int) -> Select[Any]:
    """Those of the ids that are beaten; only the records of their workloads are ranked."""
    named, chosen = tables.records.alias("named"), sorted(set(ids))
    concerned = select(named.c.workload_key).where(among(connection, named.c.id, chosen))
    ranked = _ranked(and_(tables.records.c.workload_key.in_(concerned), _unpinned())).subquery("ranked")
    return select(ranked.c.id).where(ranked.c.place > keep, among(connection, ranked.c.id, chosen))


def outdated_cost_models(keep: int) -> Select[Any]:
    """The cost models that `keep` newer ones of their target follow, and their digests."""
    table = tables.cost_models.c
    place = func.row_number().over(partition_by=table.target, order_by=(table.created_at.desc(), table.id))
    ranked = select(table.id, table.booster_digest, table.samples_digest, place.label("place")).subquery("ranked")
    return select(ranked).where(ranked.c.place > keep).order_by(ranked.c.id)


def _unpinned() -> ColumnElement[bool]:
    """Whether a record is of a workload that no pinned network names."""
    tasks, pins = tables.network_tasks.c, tables.pins.c
    pinned = select(tasks.workload_key).where(tasks.network == pins.network, tasks.version == pins.version)
    return tables.records.c.workload_key.not_in(pinned)


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
    connection: Connection,
    workloads: Iterable[str],
    clusters: Iterable[str],
    anchors: Iterable[str],
    refuted_in: Sequence[str] = (),
) -> CompoundSelect[Any]:
    """Keys of workloads, in a look-up for each way: no index serves an OR over several columns."""
    known = tables.workloads.c
    lookups = ((known.key, workloads), (known.cluster, clusters), (known.anchor, anchors))
    found = [select(known.key).where(among(connection, column, keys)) for column, keys in lookups]
    if refuted_in:
        misleading, refutations = tables.records.alias("misleading"), tables.refutations
        refuted = select(misleading.c.workload_key).join(refutations, refutations.c.record_id == misleading.c.id)
        found.append(refuted.where(among(connection, refutations.c.cluster, refuted_in)))
    return union(*found)


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
