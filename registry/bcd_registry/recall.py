"""What is said of records after they were measured: taken back, restored, drifted, steady; and who taught whom."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Mapping, Sequence

from .errors import ConfigError, NotFound
from .model import Event, EventKind, Json, Selection, TuningRecord, Workload
from .ports import Catalog


class Recall:
    """The part of the registry that can be called back, and explained. Records come without their traces."""

    def __init__(self, catalog: Catalog, clock: Callable[[], float]) -> None:
        """Work over the catalog; the clock gives Unix seconds."""
        self._catalog = catalog
        self._clock = clock

    def select(self, selection: Selection) -> list[TuningRecord]:
        """Records that meet all criteria, whatever their state, invalidated ones included; newest first."""
        return [record for record, _ in self._catalog.select_records(selection, now_s=self._clock())]

    def descendants(self, ids: Sequence[str]) -> list[TuningRecord]:
        """Records that were diffused from these, over all generations, oldest first; those given are left out."""
        return self._catalog.find_descendants(ids)

    def ancestors(self, record_id: str) -> list[TuningRecord]:
        """What the record was diffused from, nearest first, as far as it is stored."""
        return self._catalog.find_ancestors(record_id)

    def invalidate(self, ids: Sequence[str], reason: str, *, selection: Selection | Mapping[str, Json] | None = None) -> Event:
        """Serve the records no more, neither as results nor as priors, until they are restored.

        Args:
            selection: How they were chosen, which is kept.

        Raises:
            ConfigError: There are no records, or no reason.
            NotFound: One of the ids is not there; then none is invalidated.
        """
        event = self._event(EventKind.INVALIDATED, ids, reason, selection)
        self._catalog.invalidate_records(event)
        return event

    def restore(self, what: Sequence[str] | str, reason: str) -> Event:
        """Serve records again that were invalidated: they are what they were before.

        Args:
            what: Ids of records, which undoes every invalidation of them; or, as one text, how the id of an event begins: what
                others took back as well stays so.

        Returns:
            The event with the records that are restored.

        Raises:
            ConfigError: There is no reason, or the event is no invalidation.
            NotFound: There is no such event, or nothing to restore.
        """
        undone = self._invalidation(what) if isinstance(what, str) else None
        ids = what if undone is None else undone.records
        selection = None if undone is None else {"event": undone.id}
        event = self._event(EventKind.RESTORED, ids, reason, selection)
        restored = self._catalog.restore_records(event, undone=None if undone is None else undone.id)
        if not restored:
            raise NotFound("none of these records is invalidated: there is nothing to restore")
        return dataclasses.replace(event, records=restored)

    def mark_drift(
        self, reasons: Mapping[str, str], reason: str, *, selection: Selection | Mapping[str, Json] | None = None
    ) -> Event:
        """Let the records be priors only, each for its own reason, by id.

        Args:
            reason: What found it, for the history.
            selection: How they were chosen, which is kept.

        Raises:
            ConfigError: There are no records, or a reason is empty.
            NotFound: One of the ids is not there; then none is marked.
        """
        event = self._event(EventKind.DRIFTED, list(reasons), reason, selection)
        self._catalog.mark_drift(reasons, event)
        return event

    def clear_drift(self, ids: Sequence[str], reason: str, *, selection: Selection | Mapping[str, Json] | None = None) -> Event:
        """Trust the latencies of the records again.

        Raises:
            ConfigError: There are no records, or no reason.
            NotFound: One of the ids is not there; then none is cleared.
        """
        event = self._event(EventKind.STEADY, ids, reason, selection)
        self._catalog.clear_drift(event)
        return event

    def get_event(self, id_prefix: str) -> Event:
        """The one event whose id begins so.

        Raises:
            NotFound: None, or more than one.
        """
        return self._catalog.get_event(id_prefix)

    def list_events(self, *, record: str | None = None, limit: int = 50) -> list[Event]:
        """Newest first; `record` is how the id of a record begins that they are about."""
        return self._catalog.list_events(record=record, limit=limit)

    def find_left_out(
        self, *, workloads: Sequence[str] = (), clusters: Sequence[str] = (), limit: int = 1000
    ) -> list[TuningRecord]:
        """Quarantined and invalidated records of the workloads or of any in the clusters, newest first."""
        return self._catalog.find_left_out(workloads=workloads, clusters=clusters, limit=limit)

    def find_workloads(self, ops: Sequence[str], *, limit_per_op: int = 200) -> list[Workload]:
        """Workloads with these `op` labels that have a usable record, by op and key, without their descriptions."""
        return self._catalog.find_workloads(ops, limit_per_op=limit_per_op)

    def _invalidation(self, id_prefix: str) -> Event:
        event = self._catalog.get_event(id_prefix)
        if event.kind is not EventKind.INVALIDATED:
            raise ConfigError(f"event {event.id[:12]} says {event.kind}, and only an invalidation can be undone")
        return event

    def _event(
        self, kind: EventKind, ids: Sequence[str], reason: str, selection: Selection | Mapping[str, Json] | None
    ) -> Event:
        if not ids:
            raise ConfigError("no records are named", hint="`bcd-registry records list` lists them")
        if not reason.strip():
            raise ConfigError("there is no reason", hint="say in a few words why: it is kept, and shown to others")
        chosen = selection.as_json() if isinstance(selection, Selection) else dict(selection or {})
        return Event(uuid.uuid4().hex, kind, reason, chosen, tuple(sorted(set(ids))), self._clock())
