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
    exists,
    func,
    literal,
    or_,
    select,
    union,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.dml import ReturningInsert, ReturningUpdate

from bcd_registry.model import Event, EventKind, Lease, RecordState, Selection

from . import tables

Insert = sqlite.Insert | postgresql.Insert

_STATE_ORDER = {state.value: rank for rank, state in enumerate(RecordState)}
_HEX = frozenset("0123456789abcdef")
_KEPT = ("parent_id", "drift", "invalidated")


def insert_into(connection: Connection, table: Table) -> Insert:
    """An insert that can say what to do on a conflict; the two dialects spell it alike."""
    return sqlite.insert(table) if connection.dialect.name == "sqlite" else postgresql.insert(table)


def replace_in(connection: Connection, table: Table) -> Insert:
    """An insert that replaces the row of the same primary key."""
    insert, key = insert_into(connection, table), table.primary_key.columns.keys()
    return insert.on_conflict_do_update(index_elements=key, set_=_excluded(insert, table))


def upsert_record(connection: Connection) -> Insert:
    """An insert of a record that replaces one which is not further on. What events say and whom it came from stay."""
    table = tables.records
    insert = insert_into(connection, table)
    further = _state_rank(insert.excluded.state) >= _state_rank(table.c.state)
    replaced = {name: value for name, value in _excluded(insert, table).items() if name not in _KEPT}
    return insert.on_conflict_do_update(index_elements=["id"], set_=replaced, where=further)


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
    chosen = records.workload_key.in_(_keys(connection, (), clusters, anchors))
    counted = select(*place, func.count().label("n_records")).where(chosen, _usable()).group_by(*place).subquery("counted")
    lookups = ((table.c.cluster, clusters), (table.c.anchor, anchors))
    of_these = (select(*_relative_columns()).where(among(connection, column, keys)) for column, keys in lookups)
    found = union(*of_these).subquery("found")
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


def selected_records(selection: Selection, now_s: float) -> Select[Any]:
    """Records that meet all criteria, newest first."""
    table, known, tasks = tables.records, tables.workloads.c, tables.network_tasks.c
    begins = ((table.c.id, selection.record), (table.c.workload_key, selection.workload))
    chosen = [begins_with(c, prefix) for c, prefix in (*begins, (table.c.environment_key, selection.environment)) if prefix]
    if selection.cluster is not None:
        chosen.append(table.c.workload_key.in_(select(known.key).where(begins_with(known.cluster, selection.cluster))))
    if selection.network is not None:
        name, version = selection.network
        of_network = select(tasks.workload_key).where(tasks.network == name)
        of_version = of_network if version is None else of_network.where(tasks.version == version)
        chosen.append(table.c.workload_key.in_(of_version))
    if selection.older_than_s is not None:
        chosen.append(table.c.created_at < now_s - selection.older_than_s)
    return select(table).where(*chosen).order_by(table.c.created_at.desc(), table.c.id)


def descendants(connection: Connection, ids: Iterable[str]) -> Select[Any]:
    """Records diffused from those, over all generations, oldest first. A union drops what it has, so that circles end."""
    table, child = tables.records, tables.records.alias("child")
    tree = select(table.c.id).where(among(connection, table.c.parent_id, ids)).cte("descendants", recursive=True)
    tree = tree.union(select(child.c.id).join(tree, child.c.parent_id == tree.c.id))
    found = table.c.id.in_(select(tree.c.id))
    return select(table).where(found, ~among(connection, table.c.id, ids)).order_by(table.c.created_at, table.c.id)


def with_ancestors(record_id: str) -> Select[Any]:
    """The record, the one that it was diffused from, and so on, in no order."""
    table, parent = tables.records, tables.records.alias("parent")
    line = select(table.c.id, table.c.parent_id).where(table.c.id == record_id).cte("ancestors", recursive=True)
    line = line.union(select(parent.c.id, parent.c.parent_id).join(line, parent.c.id == line.c.parent_id))
    return select(table).where(table.c.id.in_(select(line.c.id)))


def left_out(connection: Connection, workloads: Iterable[str], clusters: Iterable[str], limit: int) -> Select[Any]:
    """Records of the workloads or in the clusters that lookups leave out, newest first."""
    table = tables.records
    chosen = table.c.workload_key.in_(_keys(connection, workloads, clusters, ()))
    return select(table).where(chosen, ~_usable()).order_by(table.c.created_at.desc(), table.c.id).limit(limit)


def workloads_of_ops(connection: Connection, ops: Iterable[str], limit_per_op: int) -> Select[Any]:
    """Workloads with the labels that have a usable record; all but their descriptions."""
    table = tables.workloads
    place = func.row_number().over(partition_by=table.c.op, order_by=table.c.key).label("place")
    ranked = select(table.c.key, place).where(among(connection, table.c.op, ops), _has_usable_record()).subquery("ranked")
    return select(*_relative_columns()).join(ranked, ranked.c.key == table.c.key).where(ranked.c.place <= limit_per_op)


def undo_invalidations(connection: Connection, event: Event, undone: str | None) -> ReturningUpdate[Any]:
    """Mark the invalidations of the event's records, or that one alone, as undone by it; returns the records' ids."""
    table, events = tables.event_records, tables.events.c
    invalidations = select(events.id).where(events.kind == EventKind.INVALIDATED.value)
    holding = [among(connection, table.c.record_id, event.records), table.c.undone_by.is_(None)]
    holding.append(table.c.event_id.in_(invalidations) if undone is None else table.c.event_id == undone)
    return update(table).where(*holding).values(undone_by=event.id).returning(table.c.record_id)


def invalidated_by_what_is_left(connection: Connection, ids: Iterable[str]) -> Update:
    """Let the records name the newest invalidation of them that is not undone, or none."""
    table, events, about = tables.records, tables.events.c, tables.event_records.c
    left = (
        select(about.event_id)
        .join(tables.events, events.id == about.event_id)
        .where(about.record_id == table.c.id, about.undone_by.is_(None), events.kind == EventKind.INVALIDATED.value)
        .order_by(events.created_at.desc(), events.id)
        .limit(1)
        .correlate(table)
        .scalar_subquery()
    )
    return update(table).where(among(connection, table.c.id, ids)).values(invalidated=func.coalesce(left, ""))


def forget_invalidations(connection: Connection, ids: Iterable[str]) -> Update:
    """Nothing holds a record that is removed: one that is stored again begins anew."""
    table = tables.event_records
    return update(table).where(among(connection, table.c.record_id, ids), table.c.undone_by.is_(None)).values(undone_by="")


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
    return select(table.id, place.label("place")).where(chosen, _usable())


def _usable() -> ColumnElement[bool]:
    """Whether a record may be served, as a result or as a prior."""
    table = tables.records.c
    return and_(table.state != RecordState.QUARANTINED.value, table.invalidated == "")


def _has_usable_record() -> ColumnElement[bool]:
    return exists().where(tables.records.c.workload_key == tables.workloads.c.key, _usable())


def _relative_columns() -> list[Column[Any]]:
    """The columns of a workload that `rows.relative_of` reads."""
    return [column for column in tables.workloads.c if column.name != "description"]


def _of(lease: Lease) -> Update:
    table = tables.leases
    return update(table).where(table.c.name == lease.name, table.c.holder == lease.holder, table.c.token == lease.token)


def _now(connection: Connection) -> ColumnElement[float]:
    """Unix seconds by the database's own clock, not the transaction's start; SQLite's is this machine's."""
    if connection.dialect.name == "sqlite":
        return literal(time.time(), Double)
    return func.date_part("epoch", func.clock_timestamp(), type_=Double)
