"""A catalog that is only read: consumers and builds of pull requests never change what others tuned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bcd_registry.errors import ReadOnly
from bcd_registry.model import (
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
from bcd_registry.ports import Catalog


class ReadOnlyCatalog:
    """Passes reads on to a catalog; each write is refused here, before anything is sent.

    Raises:
        ReadOnly: Any write.
    """

    def __init__(self, catalog: Catalog) -> None:
        """Read from the catalog, which its owner closes."""
        self._catalog = catalog

    def put_environment(self, environment: Environment) -> str:
        """Refused."""
        raise _refusal("store an environment")

    def get_environment(self, key: str) -> Environment:
        """See `Catalog.get_environment`."""
        return self._catalog.get_environment(key)

    def get_environments(self, keys: Sequence[str]) -> Mapping[str, Environment]:
        """See `Catalog.get_environments`."""
        return self._catalog.get_environments(keys)

    def put_workloads(self, workloads: Sequence[Workload]) -> None:
        """Refused."""
        raise _refusal("store workloads")

    def get_workloads(self, keys: Sequence[str]) -> Mapping[str, Workload]:
        """See `Catalog.get_workloads`."""
        return self._catalog.get_workloads(keys)

    def put_network(self, network: NetworkVersion) -> None:
        """Refused."""
        raise _refusal(f"store network {network.name!r}")

    def list_networks(self) -> list[NetworkVersion]:
        """See `Catalog.list_networks`."""
        return self._catalog.list_networks()

    def get_network(self, name: str, version: str) -> NetworkVersion:
        """See `Catalog.get_network`."""
        return self._catalog.get_network(name, version)

    def delete_network(self, name: str, version: str) -> None:
        """Refused."""
        raise _refusal(f"delete network {name!r}")

    def pin_network(self, name: str, version: str) -> None:
        """Refused."""
        raise _refusal(f"pin network {name!r}")

    def unpin_network(self, name: str, version: str) -> None:
        """Refused."""
        raise _refusal(f"unpin network {name!r}")

    def list_pins(self) -> set[tuple[str, str]]:
        """See `Catalog.list_pins`."""
        return self._catalog.list_pins()

    def add_records(
        self, records: Sequence[TuningRecord], trace_digests: Sequence[str], *, fences: Sequence[Lease] = ()
    ) -> None:
        """Refused."""
        raise _refusal("store records")

    def set_record_states(self, ids: Sequence[str], state: RecordState, reason: str) -> None:
        """Refused."""
        raise _refusal(f"mark a record as {state}")

    def find_records(
        self,
        *,
        workloads: Sequence[str] = (),
        clusters: Sequence[str] = (),
        anchors: Sequence[str] = (),
        refuted_in: Sequence[str] = (),
        per_workload: int = 8,
    ) -> list[tuple[TuningRecord, str]]:
        """See `Catalog.find_records`."""
        return self._catalog.find_records(
            workloads=workloads, clusters=clusters, anchors=anchors, refuted_in=refuted_in, per_workload=per_workload
        )

    def find_relatives(self, *, clusters: Sequence[str] = (), anchors: Sequence[str] = ()) -> list[Relative]:
        """See `Catalog.find_relatives`."""
        return self._catalog.find_relatives(clusters=clusters, anchors=anchors)

    def list_records(
        self, *, workload: str | None = None, network: tuple[str, str] | None = None, limit: int = 100
    ) -> list[tuple[TuningRecord, str]]:
        """See `Catalog.list_records`."""
        return self._catalog.list_records(workload=workload, network=network, limit=limit)

    def get_record(self, id_prefix: str) -> tuple[TuningRecord, str]:
        """See `Catalog.get_record`."""
        return self._catalog.get_record(id_prefix)

    def select_records(self, selection: Selection, *, now_s: float) -> list[tuple[TuningRecord, str]]:
        """See `Catalog.select_records`."""
        return self._catalog.select_records(selection, now_s=now_s)

    def find_descendants(self, ids: Sequence[str]) -> list[TuningRecord]:
        """See `Catalog.find_descendants`."""
        return self._catalog.find_descendants(ids)

    def find_ancestors(self, record_id: str) -> list[TuningRecord]:
        """See `Catalog.find_ancestors`."""
        return self._catalog.find_ancestors(record_id)

    def find_left_out(
        self, *, workloads: Sequence[str] = (), clusters: Sequence[str] = (), limit: int = 1000
    ) -> list[TuningRecord]:
        """See `Catalog.find_left_out`."""
        return self._catalog.find_left_out(workloads=workloads, clusters=clusters, limit=limit)

    def find_workloads(self, ops: Sequence[str], *, limit_per_op: int = 200) -> list[Workload]:
        """See `Catalog.find_workloads`."""
        return self._catalog.find_workloads(ops, limit_per_op=limit_per_op)

    def invalidate_records(self, event: Event) -> None:
        """Refused."""
        raise _refusal("invalidate records")

    def restore_records(self, event: Event, *, undone: str | None = None) -> tuple[str, ...]:
        """Refused."""
        raise _refusal("restore records")

    def mark_drift(self, reasons: Mapping[str, str], event: Event) -> None:
        """Refused."""
        raise _refusal("mark records as drifted")

    def clear_drift(self, event: Event) -> None:
        """Refused."""
        raise _refusal("mark records as steady")

    def get_event(self, id_prefix: str) -> Event:
        """See `Catalog.get_event`."""
        return self._catalog.get_event(id_prefix)

    def list_events(self, *, record: str | None = None, limit: int = 50) -> list[Event]:
        """See `Catalog.list_events`."""
        return self._catalog.list_events(record=record, limit=limit)

    def add_refutations(self, refutations: Sequence[Refutation]) -> None:
        """Refused."""
        raise _refusal("store refutations")

    def find_refutations(self, clusters: Sequence[str]) -> list[Refutation]:
        """See `Catalog.find_refutations`."""
        return self._catalog.find_refutations(clusters)

    def forget_refutations(self, record_ids: Sequence[str]) -> None:
        """Refused."""
        raise _refusal("forget refutations")

    def add_cost_model(self, snapshot: CostModelSnapshot, booster_digest: str, samples_digest: str) -> None:
        """Refused."""
        raise _refusal("store a cost model")

    def latest_cost_model(self, target: str) -> tuple[CostModelSnapshot, str, str] | None:
        """See `Catalog.latest_cost_model`."""
        return self._catalog.latest_cost_model(target)

    def put_run(self, run: RunSummary) -> None:
        """Refused."""
        raise _refusal("store a run")

    def list_runs(self, *, network: str | None = None, version: str | None = None, limit: int = 20) -> list[RunSummary]:
        """See `Catalog.list_runs`."""
        return self._catalog.list_runs(network=network, version=version, limit=limit)

    def named_blobs(self) -> set[str]:
        """See `Catalog.named_blobs`."""
        return self._catalog.named_blobs()

    def beaten_records(self, keep: int) -> list[str]:
        """See `Catalog.beaten_records`."""
        return self._catalog.beaten_records(keep)

    def remove_records(self, ids: Sequence[str]) -> None:
        """Refused."""
        raise _refusal("remove records")

    def remove_beaten(self, ids: Sequence[str], keep: int) -> list[str]:
        """Refused."""
        raise _refusal("remove records")

    def outdated_cost_models(self, keep: int) -> Mapping[str, tuple[str, str]]:
        """See `Catalog.outdated_cost_models`."""
        return self._catalog.outdated_cost_models(keep)

    def remove_cost_models(self, ids: Sequence[str]) -> None:
        """Refused."""
        raise _refusal("remove cost models")

    def count_rows(self) -> Mapping[str, int]:
        """See `Catalog.count_rows`."""
        return self._catalog.count_rows()

    def acquire_lease(self, name: str, holder: str, ttl_s: float) -> Lease | None:
        """Refused."""
        raise _refusal("take a lease")

    def renew_lease(self, lease: Lease, ttl_s: float) -> Lease | None:
        """Refused."""
        raise _refusal("renew a lease")

    def release_lease(self, lease: Lease) -> None:
        """Refused."""
        raise _refusal("release a lease")


def _refusal(what: str) -> ReadOnly:
    return ReadOnly(f"the registry is read-only here: cannot {what}", hint="leave out --read-only, and unset BCD_READ_ONLY")
