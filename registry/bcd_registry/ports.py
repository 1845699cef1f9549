"""The two ports of the registry. They carry the whole contract; implementations say only what differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from .model import (
    BlobInfo,
    CostModelSnapshot,
    Environment,
    Event,
    Lease,
    NetworkVersion,
    RecordState,
    Refutation,
    Relative,
    RunSummary,
    Selection,
    TuningRecord,
    Workload,
)


class BlobStore(Protocol):
    """Bytes named by their own SHA-256 digest (64 lower-case hex digits). Safe to use from several threads and processes.

    Raises:
        StoreUnavailable: Any call, when the store does not answer or is full.
        StoreDenied: Any call, when the store refuses this user.
        ConfigError: A digest that is not 64 lower-case hex digits.
    """

    def put(self, data: bytes) -> str:
        """Store `data` and return its digest. Appears whole or not at all; storing it again is a success.

        What is there already counts as put now, see `BlobInfo.modified_at`, at least when that was longer ago than an hour.

        Raises:
            Conflict: The digest is taken by other bytes (a damaged blob).
        """

    def get(self, digest: str) -> bytes:
        """The bytes, verified against the digest.

        Raises:
            NotFound: Nothing is stored under the digest.
            CorruptBlob: What is stored does not match the digest.
        """

    def exists(self, digest: str) -> bool:
        """Whether something is stored under the digest; it is not verified."""

    def delete(self, digest: str) -> None:
        """Remove the blob; removing what is not there is a success."""

    def iter_blobs(self) -> Iterator[BlobInfo]:
        """Every blob stored, in no promised order, lazily."""


class Catalog(Protocol):
    """Rows: environments, workloads, networks, records, refutations, events, cost models and runs.

    Each write is one transaction.

    Writes of what is there already are successes without effect (ids and keys are digests of content), except that
    `set_record_states`, `put_network`, `add_refutations` and `put_run` replace. Safe to use from several threads and processes.

    Raises:
        StoreUnavailable: Any call, when the database does not answer, is full or stays locked.
        StoreDenied: Any call, when the database refuses this user.
        SchemaMismatch: On opening, when the revision is not this release's.
    """

    def put_environment(self, environment: Environment) -> str:
        """Store it and return its key."""

    def get_environment(self, key: str) -> Environment:
        """The environment with the key, notes included.

        Raises:
            NotFound: There is none.
        """

    def get_environments(self, keys: Sequence[str]) -> Mapping[str, Environment]:
        """Those that are there, by key, in one query."""

    def put_workloads(self, workloads: Sequence[Workload]) -> None:
        """Store the workloads that are new, in one transaction."""

    def get_workloads(self, keys: Sequence[str]) -> Mapping[str, Workload]:
        """Those that are there, by key."""

    def put_network(self, network: NetworkVersion) -> None:
        """Store a version with its tasks (their workloads must be stored); replaces the version of that name."""

    def list_networks(self) -> list[NetworkVersion]:
        """Every version, by name and version."""

    def get_network(self, name: str, version: str) -> NetworkVersion:
        """One version.

        Raises:
            NotFound: There is none.
        """

    def delete_network(self, name: str, version: str) -> None:
        """Remove a version and its tasks; its workloads and their records stay.

        Raises:
            NotFound: There is none.
            Conflict: It is pinned.
        """

    def pin_network(self, name: str, version: str) -> None:
        """Keep the records of its workloads and the version itself; pinning it again is a success.

        Raises:
            NotFound: There is none.
        """

    def unpin_network(self, name: str, version: str) -> None:
        """Undo `pin_network`; unpinning what is not pinned is a success."""

    def list_pins(self) -> set[tuple[str, str]]:
        """Name and version of every pinned network."""

    def add_records(
        self, records: Sequence[TuningRecord], trace_digests: Sequence[str], *, fences: Sequence[Lease] = ()
    ) -> None:
        """Store records whose traces lie in blobs of the given digests, all of them or none.

        A record of the same id is replaced when the new state is further on, or when it is in the same state. Its parent is
        that of the first, and what events said of it (`drift`, `invalidated`) stays; a new one is stored without.

        Args:
            fences: Leases that the writer believes to hold.

        Raises:
            Conflict: One of the fences went to another holder; then nothing is stored.
        """

    def set_record_states(self, ids: Sequence[str], state: RecordState, reason: str) -> None:
        """Move records to a state.

        Raises:
            NotFound: One of the ids is not there; then none is moved.
        """

    def find_records(
        self,
        *,
        workloads: Sequence[str] = (),
        clusters: Sequence[str] = (),
        anchors: Sequence[str] = (),
        refuted_in: Sequence[str] = (),
        per_workload: int = 8,
    ) -> list[tuple[TuningRecord, str]]:
        """Records of the workloads, or of any workload in the clusters or with the anchors, with their trace digests.

        For each workload and environment at most `per_workload`: further states first, then lowest median. Quarantined and
        invalidated ones are left out. The records' `trace` is None: it lies in the blob. A constant number of queries,
        whatever the lengths.

        Args:
            refuted_in: Clusters; records of every workload are found of which one misled a workload in them.
        """

    def find_relatives(self, *, clusters: Sequence[str] = (), anchors: Sequence[str] = ()) -> list[Relative]:
        """Workloads in the clusters or with the anchors that have records which a lookup may find, in no promised order.

        A hot cluster has thousands: whoever wants the records of the nearest chooses among these, then finds those by key.
        A constant number of queries, whatever the lengths.
        """

    def list_records(
        self, *, workload: str | None = None, network: tuple[str, str] | None = None, limit: int = 100
    ) -> list[tuple[TuningRecord, str]]:
        """Newest first, for people; `workload` may be a prefix of a key; quarantined ones included."""

    def get_record(self, id_prefix: str) -> tuple[TuningRecord, str]:
        """The one record whose id begins so.

        Raises:
            NotFound: None, or more than one (the message says which).
        """

    def select_records(self, selection: Selection, *, now_s: float) -> list[tuple[TuningRecord, str]]:
        """Records that meet all criteria, whatever their state, invalidated ones included; newest first.

        Args:
            now_s: Unix seconds, from which the selection's age counts.
        """

    def find_descendants(self, ids: Sequence[str]) -> list[TuningRecord]:
        """Records that were diffused from these, over all generations, oldest first; those given are left out.

        It ends whatever the rows say, and one that is its own ancestor is found once.
        """

    def find_ancestors(self, record_id: str) -> list[TuningRecord]:
        """The record that this one was diffused from, its parent and so on: nearest first, as far as they are stored."""

    def find_left_out(
        self, *, workloads: Sequence[str] = (), clusters: Sequence[str] = (), limit: int = 1000
    ) -> list[TuningRecord]:
        """Quarantined and invalidated records of the workloads or of any in the clusters, newest first."""

    def find_workloads(self, ops: Sequence[str], *, limit_per_op: int = 200) -> list[Workload]:
        """Workloads with these `op` labels that have a usable record, by op and key, without their descriptions."""

    def invalidate_records(self, event: Event) -> None:
        """Store the event and take its records back: no lookup sees some of them only.

        A record that several events took back is invalidated until each is undone; `invalidated` names the newest.

        Raises:
            NotFound: One of its records is not there; then nothing is stored.
        """

    def restore_records(self, event: Event, *, undone: str | None = None) -> tuple[str, ...]:
        """Serve the records of the event again that are invalidated: they are what they were before.

        The event is stored with those; when there is none, it is not stored.

        Args:
            undone: The id of the event to undo; what others took back as well stays so. None undoes all that hold them.

        Returns:
            Ids of the records whose invalidation is undone, sorted.
        """

    def mark_drift(self, reasons: Mapping[str, str], event: Event) -> None:
        """Store the event and the drift of its records, by id; it replaces what was there.

        Raises:
            NotFound: One of the records is not there; then nothing is stored.
            ConfigError: The records of the event are others, or a reason is empty.
        """

    def clear_drift(self, event: Event) -> None:
        """Store the event and forget the drift of its records; one that has none stays so.

        Raises:
            NotFound: One of the records is not there; then nothing is stored.
        """

    def get_event(self, id_prefix: str) -> Event:
        """The one event whose id begins so.

        Raises:
            NotFound: None, or more than one.
        """

    def list_events(self, *, record: str | None = None, limit: int = 50) -> list[Event]:
        """Newest first; `record` is how the id of a record begins that they are about."""

    def add_refutations(self, refutations: Sequence[Refutation]) -> None:
        """Store refutations, all of them or none; one replaces that of the same record, workload and environment.

        Raises:
            NotFound: The record, the workload or the environment of one is not stored.
        """

    def find_refutations(self, clusters: Sequence[str]) -> list[Refutation]:
        """Those of workloads in the clusters, in whatever environment, newest first.

        A constant number of queries, whatever the length.
        """

    def forget_refutations(self, record_ids: Sequence[str]) -> None:
        """Remove every refutation of the records; removing what is not there is a success."""

    def add_cost_model(self, snapshot: CostModelSnapshot, booster_digest: str, samples_digest: str) -> None:
        """Store a snapshot's row; its bytes lie in the blobs."""

    def latest_cost_model(self, target: str) -> tuple[CostModelSnapshot, str, str] | None:
        """The newest row for the target with the digests of booster and samples (the bytes are empty), or None."""

    def put_run(self, run: RunSummary) -> None:
        """Store a run, or replace the one of the same id."""

    def list_runs(self, *, network: str | None = None, version: str | None = None, limit: int = 20) -> list[RunSummary]:
        """Newest first."""

    def named_blobs(self) -> set[str]:
        """Digests that some row names."""

    def beaten_records(self, keep: int) -> list[str]:
        """Ids of the records that `keep` better ones of their workload and environment beat.

        Better is a further state, then a lower median. Records of workloads that a pinned network names are never among them,
        nor are quarantined and invalidated ones, which are not counted either.
        """

    def remove_records(self, ids: Sequence[str]) -> None:
        """Remove records and what was refuted of them; removing what is not there is a success."""

    def remove_beaten(self, ids: Sequence[str], keep: int) -> list[str]:
        """Remove those of the records that are beaten at this moment, see `beaten_records`, and what was refuted of them.

        Returns:
            Their ids. What was published, or pinned with its network, since it was chosen stays.
        """

    def outdated_cost_models(self, keep: int) -> Mapping[str, tuple[str, str]]:
        """The digests of booster and samples, by id, of the cost models that `keep` newer ones of their target follow."""

    def remove_cost_models(self, ids: Sequence[str]) -> None:
        """Remove cost models; removing what is not there is a success."""

    def count_rows(self) -> Mapping[str, int]:
        """How many rows there are, by what they are.

        `environments`, `workloads`, `clusters`, `networks`, `pins`, `refutations`, `events`, `cost_models`, `runs`; the records
        by state: `measured`, `checked`, `published`, `quarantined`; and, whatever their state, those that are `invalidated`.
        """

    def acquire_lease(self, name: str, holder: str, ttl_s: float) -> Lease | None:
        """Take the lease unless another holder has it and it has not expired; None when it is taken.

        A holder that asks again gets its own lease, renewed, with the same token.
        """

    def renew_lease(self, lease: Lease, ttl_s: float) -> Lease | None:
        """The same lease for longer; None when it went to another holder. One that expired and was not taken is renewed."""

    def release_lease(self, lease: Lease) -> None:
        """Give it back, so that the next one need not wait until it expires; one that went to another is left alone."""
