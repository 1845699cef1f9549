"""The part of the catalog that says what became of records: selections, lineage and events."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Engine, Select, bindparam, select, update

from bcd_registry.errors import ConfigError, NotFound
from bcd_registry.model import Event, Selection, TuningRecord, Workload

from . import rows, statements, tables
from .engines import transaction
from .statements import among, begins_with, insert_into

_SHOWN_DIGITS = 12


class HistoryQueries:
    """What `SqlCatalog` answers and writes about records that are there already."""

    def __init__(self, engine: Engine) -> None:
        """Use a database that is at this release's revision already."""
        self._engine = engine

    def select_records(self, selection: Selection, *, now_s: float) -> list[tuple[TuningRecord, str]]:
        """See `Catalog.select_records`."""
        return self._read(statements.selected_records(selection, now_s))

    def find_descendants(self, ids: Sequence[str]) -> list[TuningRecord]:
        """See `Catalog.find_descendants`."""
        with transaction(self._engine, write=False) as connection:
            found = connection.execute(statements.descendants(connection, ids)).mappings()
            return [record for record, _ in rows.readable(found, rows.record_of)]

    def find_ancestors(self, record_id: str) -> list[TuningRecord]:
        """See `Catalog.find_ancestors`."""
        by_id = {record.id: record for record, _ in self._read(statements.with_ancestors(record_id))}
        found: list[TuningRecord] = []
        current = by_id.pop(record_id, None)
        while current is not None and (parent := by_id.pop(current.parent_id or "", None)) is not None:
            found.append(parent)
            current = parent
        return found

    def find_left_out(
        self, *, workloads: Sequence[str] = (), clusters: Sequence[str] = (), limit: int = 1000
    ) -> list[TuningRecord]:
        """See `Catalog.find_left_out`."""
        with transaction(self._engine, write=False) as connection:
            found = connection.execute(statements.left_out(connection, workloads, clusters, limit)).mappings()
            return [record for record, _ in rows.readable(found, rows.record_of)]

    def find_workloads(self, ops: Sequence[str], *, limit_per_op: int = 200) -> list[Workload]:
        """See `Catalog.find_workloads`."""
        with transaction(self._engine, write=False) as connection:
            found = connection.execute(statements.workloads_of_ops(connection, ops, limit_per_op)).mappings()
            return sorted(rows.readable(found, rows.relative_of), key=lambda w: (w.op, w.key))

    def invalidate_records(self, event: Event) -> None:
        """See `Catalog.invalidate_records`."""
        table = tables.records
        with transaction(self._engine, write=True) as connection:
            lock_known(connection, event.records)
            _store(connection, event)
            connection.execute(update(table).where(among(connection, table.c.id, event.records)).values(invalidated=event.id))

    def restore_records(self, event: Event, *, undone: str | None = None) -> tuple[str, ...]:
        """See `Catalog.restore_records`."""
        with transaction(self._engine, write=True) as connection:
            there = set(connection.execute(statements.locked_records(connection, event.records)).scalars())
            lifted = set(connection.execute(statements.undo_invalidations(connection, event, undone)).scalars())
            restored = tuple(sorted(there & lifted))
            if restored:
                _store(connection, dataclasses.replace(event, records=restored))
                connection.execute(statements.invalidated_by_what_is_left(connection, restored))
        return restored

    def mark_drift(self, reasons: Mapping[str, str], event: Event) -> None:
        """See `Catalog.mark_drift`."""
        if set(reasons) != set(event.records) or not all(reasons.values()):
            raise ConfigError("each record that drifted needs a reason of its own")
        table = tables.records
        mark = update(table).where(table.c.id == bindparam("drifted_id")).values(drift=bindparam("drift_reason"))
        with transaction(self._engine, write=True) as connection:
            lock_known(connection, event.records)
            _store(connection, event)
            if reasons:
                connection.execute(mark, [{"drifted_id": i, "drift_reason": reasons[i]} for i in event.records])

    def clear_drift(self, event: Event) -> None:
        """See `Catalog.clear_drift`."""
        table = tables.records
        with transaction(self._engine, write=True) as connection:
            lock_known(connection, event.records)
            _store(connection, event)
            connection.execute(update(table).where(among(connection, table.c.id, event.records)).values(drift=""))

    def get_event(self, id_prefix: str) -> Event:
        """See `Catalog.get_event`."""
        table = tables.events
        query = select(table).where(begins_with(table.c.id, id_prefix)).order_by(table.c.id).limit(2)
        with transaction(self._engine, write=False) as connection:
            found = _events(connection, query)
        if not found:
            raise NotFound(f"no event {id_prefix!r} in the registry", hint="`bcd-registry lineage ID` shows those of a record")
        if len(found) > 1:
            raise NotFound(f"{id_prefix!r} names more than one event", hint="give more digits of the id")
        return found[0]

    def list_events(self, *, record: str | None = None, limit: int = 50) -> list[Event]:
        """See `Catalog.list_events`."""
        table, about = tables.events, tables.event_records.c
        query = select(table).order_by(table.c.created_at.desc(), table.c.id).limit(limit)
        if record is not None:
            query = query.where(table.c.id.in_(select(about.event_id).where(begins_with(about.record_id, record))))
        with transaction(self._engine, write=False) as connection:
            return _events(connection, query)

    def _read(self, query: Select[Any]) -> list[tuple[TuningRecord, str]]:
        with transaction(self._engine, write=False) as connection:
            return rows.readable(connection.execute(query).mappings(), rows.record_of)


def lock_known(connection: Connection, ids: Iterable[str]) -> None:
    """Keep the records as they are until the transaction ends.

    Raises:
        NotFound: One of them is not there.
    """
    missing = set(ids) - set(connection.execute(statements.locked_records(connection, ids)).scalars())
    if missing:
        raise NotFound(f"no record {shortened(missing)} in the registry")


def shortened(ids: Iterable[str]) -> str:
    """The first digits of each, for a message."""
    return ", ".join(sorted(i[:_SHOWN_DIGITS] for i in ids))


def _store(connection: Connection, event: Event) -> None:
    connection.execute(insert_into(connection, tables.events).on_conflict_do_nothing(), rows.event_row(event))
    if event.records:
        insert = insert_into(connection, tables.event_records).on_conflict_do_nothing()
        connection.execute(insert, [{"event_id": event.id, "record_id": i} for i in event.records])


def _events(connection: Connection, query: Select[Any]) -> list[Event]:
    """The events of the query, in its order, with their records."""
    found = connection.execute(query).mappings().all()
    about = tables.event_records
    of_these = select(about).where(among(connection, about.c.event_id, [row["id"] for row in found]))
    records: dict[str, list[str]] = {}
    for row in connection.execute(of_these).mappings():
        records.setdefault(row["event_id"], []).append(row["record_id"])
    return rows.readable(found, lambda row: rows.event_of(row, sorted(records.get(row["id"], ()))))
