"""The registry: rows and bytes behind one facade."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TypeVar

from .blobs.digests import blob_digest
from .errors import Conflict, CorruptBlob, MeasureError, NotFound, StoreDenied
from .lookup import Known
from .model import (
    BlobInfo,
    CostModelSnapshot,
    Environment,
    Json,
    Lease,
    Match,
    NetworkVersion,
    RecordState,
    Refutation,
    RunSummary,
    TuningRecord,
    Workload,
)
from .parallel import in_threads
from .ports import BlobStore, Catalog
from .reading import Reading, read_known
from .recall import Recall
from .staleness import DEFAULT_POLICY, StalenessPolicy
from .traces import pack_trace, unpack_trace

_LOG = logging.getLogger(__name__)
_Dated = TypeVar("_Dated", TuningRecord, NetworkVersion, CostModelSnapshot, RunSummary, Refutation)


class Registry(Recall):
    """What the tuner and the command line work with. Threads may share it.

    Every call raises what its stores raise: `StoreUnavailable`, `StoreDenied`. An error is never turned into a miss.
    """

    def __init__(
        self,
        catalog: Catalog,
        blobs: BlobStore,
        clock: Callable[[], float] = time.time,
        on_close: Callable[[], None] | None = None,
        *,
        policy: StalenessPolicy = DEFAULT_POLICY,
    ) -> None:
        """Work over the two stores.

        Args:
            clock: Unix seconds, for values that come without a time.
            on_close: Called once by `close`, to close what the stores hold open.
            policy: What lookups say of records that are old or of another release.
        """
        super().__init__(catalog, clock)
        self._blobs = blobs
        self._policy = policy
        self._left_out: set[str] = set()
        self._resources = contextlib.ExitStack()
        if on_close is not None:
            self._resources.callback(on_close)

    @property
    def policy(self) -> StalenessPolicy:
        """What lookups say of records that are old or of another release."""
        return self._policy

    def close(self) -> None:
        """Close the stores; the registry cannot be used afterwards."""
        self._resources.close()

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def lookup(self, workloads: Sequence[Workload], environment: Environment, depths: Mapping[str, int]) -> list[Match]:
        """One match for each workload, in order; the records in it carry their traces.

        A record whose trace is missing or damaged is quarantined, and the next best takes its place. Priors that
        were refuted for a workload are left out of its match, see `Refutation`.

        Args:
            depths: The `--trials` asked, by workload key.
        """
        reading = Reading(
            self._catalog,
            workloads,
            environment,
            depths,
            policy=self._policy,
            now_s=self._clock(),
            left_out=self._left_out,
        )
        traces: dict[str, Json] = {}
        while True:
            matches = reading.grade()
            bad = self._load_traces(matches, reading.digests, traces)
            if not bad:
                return [_with_traces(match, traces) for match in reading.described(matches)]
            self._quarantine_bad(bad)
            reading.leave_out(bad)

    def find_known(self, workloads: Sequence[Workload]) -> Known:
        """All that a lookup may grade the workloads from; records come without their traces, and nothing is changed."""
        return read_known(self._catalog, workloads, left_out=self._left_out)

    def put_environment(self, environment: Environment) -> str:
        """Store the environment that records will refer to, and return its key."""
        return self._catalog.put_environment(environment)

    def put_workloads(self, workloads: Sequence[Workload]) -> None:
        """Store the workloads that records will refer to."""
        self._catalog.put_workloads(workloads)

    def keep(self, records: Sequence[TuningRecord], *, fences: Sequence[Lease] = ()) -> None:
        """Store records as priors, all of them or none. Their workloads and environment must be stored.

        Args:
            fences: Leases that the writer believes to hold.

        Raises:
            MeasureError: One has no valid latency or no trace, or claims to be published.
            NotFound: The workload or the environment of one is not stored.
            Conflict: One of the fences went to another holder; then nothing is stored.
        """
        for record in records:
            if record.state not in (RecordState.MEASURED, RecordState.CHECKED):
                raise MeasureError(f"record {record.id[:12]} is {record.state}: only a measured or checked one is kept")
        self._add(records, fences)

    def publish(self, records: Sequence[TuningRecord], *, fences: Sequence[Lease] = ()) -> list[TuningRecord]:
        """Store checked records as published, all of them or none, and return them so.

        Args:
            fences: Leases that the writer believes to hold.

        Raises:
            MeasureError: One has no valid latency or no trace, or was not checked.
            NotFound: The workload or the environment of one is not stored.
            Conflict: One of the fences went to another holder; then nothing is stored.
        """
        for record in records:
            if record.state not in (RecordState.CHECKED, RecordState.PUBLISHED):
                raise MeasureError(f"record {record.id[:12]} is {record.state}: only a checked one can be published")
        return self._add([record.with_state(RecordState.PUBLISHED) for record in records], fences)

    def quarantine(self, ids: Sequence[str], reason: str) -> None:
        """Serve the records no more, as results or as priors.

        Where this user may not write, lookups of this registry leave them out until it is closed, and a log line says so.

        Raises:
            NotFound: One of the ids is not there; then none is quarantined.
        """
        if not ids:
            return
        try:
            self._catalog.set_record_states(ids, RecordState.QUARANTINED, reason)
        except StoreDenied as error:
            self._left_out.update(ids)
            shown = ", ".join(record_id[:12] for record_id in ids)
            _LOG.warning("record %s cannot be marked, and is left out here only: %s", shown, error.message)

    def refute(self, refutations: Sequence[Refutation]) -> None:
        """Remember priors that misled, all of them or none: later lookups leave them out.

        Raises:
            MeasureError: One has a negative distance, or a ratio that says it did not mislead.
            NotFound: The record, the workload or the environment of one is not stored.
        """
        for refutation in refutations:
            _require_misled(refutation)
        self._catalog.add_refutations([self._dated(refutation) for refutation in refutations])

    def forget_refutations(self, record_ids: Sequence[str]) -> None:
        """Serve the records as priors again, whatever they misled; removing what is not there is a success."""
        self._catalog.forget_refutations(record_ids)

    def list_records(
        self, *, workload: str | None = None, network: tuple[str, str] | None = None, limit: int = 100
    ) -> list[TuningRecord]:
        """Newest first, without traces; `workload` may be a prefix of a key; quarantined ones included."""
        return [record for record, _ in self._catalog.list_records(workload=workload, network=network, limit=limit)]

    def get_record(self, id_prefix: str) -> TuningRecord:
        """The one record whose id begins so, with its trace.

        Raises:
            NotFound: None, or more than one; or its trace is gone.
            CorruptBlob: Its trace is damaged.
        """
        record, digest = self._catalog.get_record(id_prefix)
        return dataclasses.replace(record, trace=self._load_trace(record, digest))

    def get_workloads(self, keys: Sequence[str]) -> Mapping[str, Workload]:
        """Those that are stored, by key."""
        return self._catalog.get_workloads(keys)

    def get_environment(self, key: str) -> Environment:
        """The environment with the key.

        Raises:
            NotFound: There is none.
        """
        return self._catalog.get_environment(key)

    def register_network(self, network: NetworkVersion) -> None:
        """Store a version of a network and the workloads of its tasks; replaces the version of that name."""
        self._catalog.put_workloads([task.workload for task in network.tasks])
        self._catalog.put_network(self._dated(network))

    def list_networks(self) -> list[NetworkVersion]:
        """Every version, by name and version."""
        return self._catalog.list_networks()

    def get_network(self, name: str, version: str) -> NetworkVersion:
        """One version.

        Raises:
            NotFound: There is none.
        """
        return self._catalog.get_network(name, version)

    def delete_network(self, name: str, version: str) -> None:
        """Forget a version and its tasks; its workloads and their records stay.

        Raises:
            NotFound: There is none.
            Conflict: It is pinned.
        """
        self._catalog.delete_network(name, version)

    def pin_network(self, name: str, version: str) -> None:
        """Keep a version and every record of its workloads; pinning it again is a success.

        Raises:
            NotFound: There is none.
        """
        self._catalog.pin_network(name, version)

    def unpin_network(self, name: str, version: str) -> None:
        """Undo `pin_network`; unpinning what is not pinned is a success."""
        self._catalog.unpin_network(name, version)

    def list_pins(self) -> set[tuple[str, str]]:
        """Name and version of every pinned network."""
        return self._catalog.list_pins()

    def add_cost_model(self, snapshot: CostModelSnapshot) -> None:
        """Store a snapshot: its bytes, then its row."""
        booster, samples = self._put_blob(snapshot.booster), self._put_blob(snapshot.samples)
        self._catalog.add_cost_model(self._dated(snapshot), booster, samples)

    def latest_cost_model(self, target: str) -> CostModelSnapshot | None:
        """The newest snapshot for the target, or None.

        Raises:
            NotFound: Its bytes are gone.
            CorruptBlob: They are damaged.
        """
        found = self._catalog.latest_cost_model(target)
        if found is None:
            return None
        snapshot, booster, samples = found
        return dataclasses.replace(snapshot, booster=self._blobs.get(booster), samples=self._blobs.get(samples))

    def put_run(self, run: RunSummary) -> None:
        """Store a run, or replace the one of the same id."""
        self._catalog.put_run(self._dated(run))

    def list_runs(self, *, network: str | None = None, version: str | None = None, limit: int = 20) -> list[RunSummary]:
        """Newest first."""
        return self._catalog.list_runs(network=network, version=version, limit=limit)

    def acquire_lease(self, name: str, holder: str, ttl_s: float) -> Lease | None:
        """Take the lease, or one's own again; None while another holder has it. See `Catalog.acquire_lease`."""
        return self._catalog.acquire_lease(name, holder, ttl_s)

    def renew_lease(self, lease: Lease, ttl_s: float) -> Lease | None:
        """The same lease for longer; None when it went to another holder."""
        return self._catalog.renew_lease(lease, ttl_s)

    def release_lease(self, lease: Lease) -> None:
        """Give it back; one that went to another holder is left alone."""
        self._catalog.release_lease(lease)

    def counts(self) -> Mapping[str, int]:
        """How many there are of each kind, and of the records by state. See `Catalog.count_rows`."""
        return self._catalog.count_rows()

    def beaten_records(self, keep: int) -> list[str]:
        """Ids of the records that `keep` better ones beat, pinned ones left out. See `Catalog.beaten_records`."""
        return self._catalog.beaten_records(keep)

    def trace_digest(self, record_id: str) -> str:
        """The blob that a record's trace lies in.

        Raises:
            NotFound: There is no such record.
        """
        return self._catalog.get_record(record_id)[1]

    def remove_records(self, ids: Sequence[str]) -> None:
        """Remove records and what was refuted of them; their traces stay for `housekeeping` to collect."""
        self._catalog.remove_records(ids)

    def remove_beaten(self, ids: Sequence[str], keep: int) -> list[str]:
        """Remove those of the records that are beaten at this moment, and return their ids. See `Catalog.remove_beaten`."""
        return self._catalog.remove_beaten(ids, keep)

    def outdated_cost_models(self, keep: int) -> Mapping[str, tuple[str, str]]:
        """Cost models that `keep` newer ones of their target follow. See `Catalog.outdated_cost_models`."""
        return self._catalog.outdated_cost_models(keep)

    def remove_cost_models(self, ids: Sequence[str]) -> None:
        """Remove cost models; their bytes stay for `housekeeping` to collect."""
        self._catalog.remove_cost_models(ids)

    def named_blobs(self) -> set[str]:
        """Digests that some row names."""
        return self._catalog.named_blobs()

    def iter_blobs(self) -> Iterator[BlobInfo]:
        """Every blob stored, lazily."""
        return self._blobs.iter_blobs()

    def delete_blob(self, digest: str) -> None:
        """Remove a blob, which no row may name; removing what is not there is a success."""
        self._blobs.delete(digest)

    def _load_traces(self, matches: Iterable[Match], digests: Mapping[str, str], traces: dict[str, Json]) -> dict[str, str]:
        """Add the traces of all records in the matches to `traces`, by id; return why each bad one is bad."""
        wanted = {record.id: record for record in _records_in(matches)}
        ids = [record_id for record_id in wanted if record_id not in traces]
        loaded = in_threads(lambda record_id: self._trace_or_error(wanted[record_id], digests[record_id]), ids)
        found = dict(zip(ids, loaded, strict=True))
        traces |= {record_id: trace for record_id, (trace, error) in found.items() if not error}
        return {record_id: error for record_id, (_, error) in found.items() if error}

    def _trace_or_error(self, record: TuningRecord, digest: str) -> tuple[Json, str]:
        """The trace, or why it is bad."""
        try:
            return self._load_trace(record, digest), ""
        except (CorruptBlob, NotFound) as error:
            return None, error.message

    def _load_trace(self, record: TuningRecord, digest: str) -> Json:
        return unpack_trace(self._blobs.get(digest), record.workload_key)

    def _quarantine_bad(self, bad: Mapping[str, str]) -> None:
        """Quarantine each for its own reason; one that was removed meanwhile needs no mark."""
        for record_id, reason in bad.items():
            _LOG.warning("record %s is quarantined: %s", record_id[:12], reason)
            with contextlib.suppress(NotFound):
                self.quarantine([record_id], reason)

    def _add(self, records: Sequence[TuningRecord], fences: Sequence[Lease]) -> list[TuningRecord]:
        """Blobs first, then all rows in one transaction."""
        for record in records:
            _require_usable(record)
        dated = [self._dated(record) for record in records]
        digests = in_threads(self._put_blob, [pack_trace(record.workload_key, record.trace) for record in dated])
        self._catalog.add_records(dated, digests, fences=fences)
        return dated

    def _put_blob(self, data: bytes) -> str:
        """Store the bytes; the right ones take the place of damaged ones."""
        try:
            return self._blobs.put(data)
        except Conflict as error:
            _LOG.warning("%s; replaced", error.message)
            self._blobs.delete(blob_digest(data))
            return self._blobs.put(data)

    def _dated(self, value: _Dated) -> _Dated:
        return value if value.created_at else dataclasses.replace(value, created_at=self._clock())


def _require_usable(record: TuningRecord) -> None:
    times = record.run_times_s
    if not times or not all(math.isfinite(t) and t > 0 for t in times):
        raise MeasureError(f"record {record.id[:12]} has no valid latency: {times!r}")
    if record.trace is None:
        raise MeasureError(f"record {record.id[:12]} has no trace", hint="`Registry.get_record` loads it")


def _require_misled(refutation: Refutation) -> None:
    if not (refutation.distance >= 0 and refutation.ratio > 1):
        found = f"distance {refutation.distance}, ratio {refutation.ratio}"
        raise MeasureError(f"record {refutation.record_id[:12]} is not refuted by {found}")


def _records_in(matches: Iterable[Match]) -> Iterator[TuningRecord]:
    for match in matches:
        if match.record is not None:
            yield match.record
        yield from (prior.record for prior in match.priors)


def _with_traces(match: Match, traces: Mapping[str, Json]) -> Match:
    def loaded(record: TuningRecord) -> TuningRecord:
        return dataclasses.replace(record, trace=traces[record.id])

    return dataclasses.replace(
        match,
        record=None if match.record is None else loaded(match.record),
        priors=tuple(dataclasses.replace(prior, record=loaded(prior.record)) for prior in match.priors),
    )
