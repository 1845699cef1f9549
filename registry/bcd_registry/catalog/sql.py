"""The catalog over SQLAlchemy."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from sqlalchemy import Connection, Engine, RowMapping, Select, delete, func, select, union, update

from bcd_registry.errors import Conflict, NotFound
from bcd_registry.model import (
    CostModelSnapshot,
    Environment,
    Lease,
    NetworkVersion,
    RecordState,
    Refutation,
    Relative,
    RunSummary,
    TuningRecord,
    Workload,
    canonical_json,
)
from bcd_registry.staleness import environment_key

from . import rows, schema, statements, tables
from .engines import BUSY_TIMEOUT_S, CONNECT_TIMEOUT_S, engine_of, file_engine, memory_engine, transaction
from .history import HistoryQueries, lock_known, shortened
from .keeping import Keeping
from .statements import among, begins_with, insert_into, replace_in

_COUNTED = {
    "environments": tables.environments,
    "workloads": tables.workloads,
    "networks": tables.networks,
    "pins": tables.pins,
    "refutations": tables.refutations,
    "events": tables.events,
    "cost_models": tables.cost_models,
    "runs": tables.runs,
}


class SqlCatalog(HistoryQueries, Keeping):
    """A `Catalog` over an engine: see `open_url`, `open_file` and `open_memory`.

    Threads may share it; after a fork the child opens its own.
    """

    @classmethod
    def open_url(cls, url: str, *, connect_timeout_s: float = CONNECT_TIMEOUT_S, create: bool = True) -> SqlCatalog:
        """The catalog in the database of a URL: `postgresql+psycopg://...` or `sqlite:///FILE`.

        Args:
            create: Make the tables when there are none; otherwise such a database is refused.

        Raises:
            ConfigError: The URL names no such database.
            SchemaMismatch: Its revision is not this release's.
            StoreUnavailable: It does not answer, is not there, locked, full or damaged.
            StoreDenied: It is not this user's to use.
        """
        return cls._opened(engine_of(url, connect_timeout_s), create=create)

    @classmethod
    def open_file(cls, path: Path, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> SqlCatalog:
        """The catalog in a SQLite file, which is made when it is not there.

        Raises:
            SchemaMismatch: Its revision is not this release's.
            StoreUnavailable: It is locked, full or damaged.
            StoreDenied: It is not this user's to use.
        """
        return cls._opened(file_engine(path, busy_timeout_s=busy_timeout_s))

    @classmethod
    def open_memory(cls) -> SqlCatalog:
        """A catalog that ends with the process."""
        return cls._opened(memory_engine())

    @classmethod
    def _opened(cls, engine: Engine, *, create: bool = True) -> SqlCatalog:
        try:
            if create:
                schema.create_or_check(engine)
            else:
                schema.check(engine)
        except BaseException:
            engine.dispose()
            raise
        return cls(engine)

    def close(self) -> None:
        """Close the connections; those of SQLite then fold the write-ahead log into the file."""
        self._engine.dispose()

    def __enter__(self) -> SqlCatalog:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def put_environment(self, environment: Environment) -> str:
        """See `Catalog.put_environment`. Notes of the first one of a key stay."""
        key = environment_key(environment)
        with transaction(self._engine, write=True) as connection:
            row = {"key": key, "fields": canonical_json(environment.as_json())}
            connection.execute(insert_into(connection, tables.environments).on_conflict_do_nothing(), row)
        return key

    def get_environment(self, key: str) -> Environment:
        """See `Catalog.get_environment`."""
        query = select(tables.environments).where(tables.environments.c.key == key)
        with transaction(self._engine, write=False) as connection:
            row = connection.execute(query).mappings().one_or_none()
        if row is None:
            raise NotFound(f"no environment {key[:12]} in the catalog")
        return rows.environment_of(row)

    def get_environments(self, keys: Sequence[str]) -> Mapping[str, Environment]:
        """See `Catalog.get_environments`."""
        table = tables.environments
        with transaction(self._engine, write=False) as connection:
            found = connection.execute(select(table).where(among(connection, table.c.key, keys))).mappings()
            return dict(rows.readable(found, lambda row: (row["key"], rows.environment_of(row))))

    def put_workloads(self, workloads: Sequence[Workload]) -> None:
        """See `Catalog.put_workloads`."""
        if workloads:
            with transaction(self._engine, write=True) as connection:
                insert = insert_into(connection, tables.workloads).on_conflict_do_nothing()
                connection.execute(insert, _in_order((rows.workload_row(w) for w in workloads), "key"))

    def get_workloads(self, keys: Sequence[str]) -> Mapping[str, Workload]:
        """See `Catalog.get_workloads`."""
        table = tables.workloads
        with transaction(self._engine, write=False) as connection:
            found = connection.execute(select(table).where(among(connection, table.c.key, keys))).mappings()
            return {workload.key: workload for workload in rows.readable(found, rows.workload_of)}

    def put_network(self, network: NetworkVersion) -> None:
        """See `Catalog.put_network`."""
        tasks = tables.network_tasks
        with transaction(self._engine, write=True) as connection:
            connection.execute(replace_in(connection, tables.networks), rows.network_row(network))
            connection.execute(delete(tasks).where(tasks.c.network == network.name, tasks.c.version == network.version))
            if network.tasks:
                connection.execute(tasks.insert(), rows.task_rows(network))

    def list_networks(self) -> list[NetworkVersion]:
        """See `Catalog.list_networks`."""
        with transaction(self._engine, write=False) as connection:
            return _networks(connection)

    def get_network(self, name: str, version: str) -> NetworkVersion:
        """See `Catalog.get_network`."""
        with transaction(self._engine, write=False) as connection:
            found = _networks(connection, name, version)
        if not found:
            raise _no_network(name, version)
        return found[0]

    def delete_network(self, name: str, version: str) -> None:
        """See `Catalog.delete_network`."""
        networks, pins = tables.networks, tables.pins
        pinned = select(pins).where(pins.c.network == name, pins.c.version == version)
        with transaction(self._engine, write=True) as connection:
            _lock_network(connection, name, version)
            if connection.execute(pinned).first() is not None:
                raise Conflict(f"network {name!r} version {version!r} is pinned", hint="unpin it first")
            connection.execute(delete(networks).where(networks.c.name == name, networks.c.version == version))

    def pin_network(self, name: str, version: str) -> None:
        """See `Catalog.pin_network`."""
        row = {"network": name, "version": version, "created_at": time.time()}
        with transaction(self._engine, write=True) as connection:
            _lock_network(connection, name, version)
            connection.execute(insert_into(connection, tables.pins).on_conflict_do_nothing(), row)

    def unpin_network(self, name: str, version: str) -> None:
        """See `Catalog.unpin_network`."""
        pins = tables.pins
        with transaction(self._engine, write=True) as connection:
            connection.execute(delete(pins).where(pins.c.network == name, pins.c.version == version))

    def list_pins(self) -> set[tuple[str, str]]:
        """See `Catalog.list_pins`."""
        with transaction(self._engine, write=False) as connection:
            return {(pin.network, pin.version) for pin in connection.execute(select(tables.pins))}

    def add_records(
        self, records: Sequence[TuningRecord], trace_digests: Sequence[str], *, fences: Sequence[Lease] = ()
    ) -> None:
        """See `Catalog.add_records`."""
        new = [rows.record_row(r, d) for r, d in zip(records, trace_digests, strict=True)]
        if new or fences:
            with transaction(self._engine, write=True) as connection:
                _require_held(connection, fences)
                if new:
                    connection.execute(statements.upsert_record(connection), _in_order(new, "id"))

    def set_record_states(self, ids: Sequence[str], state: RecordState, reason: str) -> None:
        """See `Catalog.set_record_states`."""
        table = tables.records
        with transaction(self._engine, write=True) as connection:
            lock_known(connection, ids)
            chosen = among(connection, table.c.id, ids)
            connection.execute(update(table).where(chosen).values(state=state.value, reason=reason))

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
        with transaction(self._engine, write=False) as connection:
            best = statements.best_records(connection, workloads, clusters, anchors, refuted_in, per_workload)
            return _records(connection, best)

    def find_relatives(self, *, clusters: Sequence[str] = (), anchors: Sequence[str] = ()) -> list[Relative]:
        """See `Catalog.find_relatives`."""
        with transaction(self._engine, write=False) as connection:
            found = connection.execute(statements.relatives(connection, clusters, anchors)).mappings()
            return rows.relatives_of(found)

    def list_records(
        self, *, workload: str | None = None, network: tuple[str, str] | None = None, limit: int = 100
    ) -> list[tuple[TuningRecord, str]]:
        """See `Catalog.list_records`."""
        table, tasks = tables.records, tables.network_tasks
        query = select(table).order_by(table.c.created_at.desc(), table.c.id).limit(limit)
        if workload is not None:
            query = query.where(begins_with(table.c.workload_key, workload))
        if network is not None:
            of_network = select(tasks.c.workload_key).where(tasks.c.network == network[0], tasks.c.version == network[1])
            query = query.where(table.c.workload_key.in_(of_network))
        with transaction(self._engine, write=False) as connection:
            return _records(connection, query)

    def get_record(self, id_prefix: str) -> tuple[TuningRecord, str]:
        """See `Catalog.get_record`."""
        table = tables.records
        query = select(table).where(begins_with(table.c.id, id_prefix)).order_by(table.c.id).limit(4)
        with transaction(self._engine, write=False) as connection:
            found = [rows.record_of(row) for row in connection.execute(query).mappings()]
        if not found:
            raise NotFound(f"no record {id_prefix!r} in the registry", hint="`bcd-registry records list` lists them")
        if len(found) > 1:
            names = shortened(record.id for record, _ in found)
            raise NotFound(f"{id_prefix!r} names more than one record: {names}", hint="give more digits of the id")
        return found[0]

    def add_refutations(self, refutations: Sequence[Refutation]) -> None:
        """See `Catalog.add_refutations`."""
        table = tables.refutations
        if refutations:
            new = _in_order((rows.refutation_row(r) for r in refutations), *table.primary_key.columns.keys())
            with transaction(self._engine, write=True) as connection:
                connection.execute(statements.locked_records(connection, [r.record_id for r in refutations], as_they_are=True))
                connection.execute(replace_in(connection, table), new)

    def find_refutations(self, clusters: Sequence[str]) -> list[Refutation]:
        """See `Catalog.find_refutations`."""
        table = tables.refutations
        order = (table.c.created_at.desc(), *table.primary_key.columns)
        with transaction(self._engine, write=False) as connection:
            query = select(table).where(among(connection, table.c.cluster, clusters)).order_by(*order)
            return rows.readable(connection.execute(query).mappings(), rows.refutation_of)

    def forget_refutations(self, record_ids: Sequence[str]) -> None:
        """See `Catalog.forget_refutations`."""
        table = tables.refutations
        with transaction(self._engine, write=True) as connection:
            connection.execute(statements.locked_records(connection, record_ids))
            connection.execute(delete(table).where(among(connection, table.c.record_id, record_ids)))

    def add_cost_model(self, snapshot: CostModelSnapshot, booster_digest: str, samples_digest: str) -> None:
        """See `Catalog.add_cost_model`."""
        row = rows.cost_model_row(snapshot, booster_digest, samples_digest)
        with transaction(self._engine, write=True) as connection:
            connection.execute(insert_into(connection, tables.cost_models).on_conflict_do_nothing(), row)

    def latest_cost_model(self, target: str) -> tuple[CostModelSnapshot, str, str] | None:
        """See `Catalog.latest_cost_model`."""
        table = tables.cost_models
        query = select(table).where(table.c.target == target).order_by(table.c.created_at.desc(), table.c.id).limit(1)
        with transaction(self._engine, write=False) as connection:
            row = connection.execute(query).mappings().one_or_none()
        return None if row is None else rows.cost_model_of(row)

    def put_run(self, run: RunSummary) -> None:
        """See `Catalog.put_run`."""
        with transaction(self._engine, write=True) as connection:
            connection.execute(replace_in(connection, tables.runs), rows.run_row(run))

    def list_runs(self, *, network: str | None = None, version: str | None = None, limit: int = 20) -> list[RunSummary]:
        """See `Catalog.list_runs`."""
        table = tables.runs
        query = select(table).order_by(table.c.created_at.desc(), table.c.id).limit(limit)
        if network is not None:
            query = query.where(table.c.network == network)
        if version is not None:
            query = query.where(table.c.version == version)
        with transaction(self._engine, write=False) as connection:
            return rows.readable(connection.execute(query).mappings(), rows.run_of)

    def named_blobs(self) -> set[str]:
        """See `Catalog.named_blobs`."""
        models = tables.cost_models.c
        query = union(select(tables.records.c.trace_digest), select(models.booster_digest), select(models.samples_digest))
        with transaction(self._engine, write=False) as connection:
            return set(connection.execute(query).scalars())

    def beaten_records(self, keep: int) -> list[str]:
        """See `Catalog.beaten_records`."""
        with transaction(self._engine, write=False) as connection:
            return list(connection.execute(statements.beaten_records(keep)).scalars())

    def remove_records(self, ids: Sequence[str]) -> None:
        """See `Catalog.remove_records`."""
        table = tables.records
        with transaction(self._engine, write=True) as connection:
            connection.execute(statements.locked_records(connection, ids))
            connection.execute(delete(table).where(among(connection, table.c.id, ids)))
            connection.execute(statements.forget_invalidations(connection, ids))

    def count_rows(self) -> Mapping[str, int]:
        """See `Catalog.count_rows`."""
        state, cluster = tables.records.c.state, tables.workloads.c.cluster
        counts = [select(func.count()).select_from(table).scalar_subquery().label(name) for name, table in _COUNTED.items()]
        counts.append(select(func.count(cluster.distinct())).scalar_subquery().label("clusters"))
        taken_back = select(func.count()).where(tables.records.c.invalidated != "")
        counts.append(taken_back.scalar_subquery().label("invalidated"))
        with transaction(self._engine, write=False) as connection:
            found = dict(connection.execute(select(*counts)).mappings().one())
            by_state = {row[0]: row[1] for row in connection.execute(select(state, func.count()).group_by(state))}
        return {**found, **{s.value: by_state.get(s.value, 0) for s in RecordState}}

    def acquire_lease(self, name: str, holder: str, ttl_s: float) -> Lease | None:
        """See `Catalog.acquire_lease`."""
        with transaction(self._engine, write=True) as connection:
            row = connection.execute(statements.acquire_lease(connection, name, holder, ttl_s)).mappings().one_or_none()
        return None if row is None else rows.lease_of(row)

    def renew_lease(self, lease: Lease, ttl_s: float) -> Lease | None:
        """See `Catalog.renew_lease`."""
        with transaction(self._engine, write=True) as connection:
            row = connection.execute(statements.renew_lease(connection, lease, ttl_s)).mappings().one_or_none()
        return None if row is None else rows.lease_of(row)

    def release_lease(self, lease: Lease) -> None:
        """See `Catalog.release_lease`."""
        with transaction(self._engine, write=True) as connection:
            connection.execute(statements.release_lease(lease))


def _records(connection: Connection, query: Select[Any]) -> list[tuple[TuningRecord, str]]:
    return rows.readable(connection.execute(query).mappings(), rows.record_of)


def _networks(connection: Connection, name: str | None = None, version: str | None = None) -> list[NetworkVersion]:
    """Every network, or that one, in three queries, by name and version as Python orders them: no two databases agree."""
    networks, tasks, workloads = tables.networks, tables.network_tasks, tables.workloads
    chosen_networks = select(networks)
    chosen_tasks = select(tasks).order_by(tasks.c.position)
    if name is not None:
        chosen_networks = chosen_networks.where(networks.c.name == name, networks.c.version == version)
        chosen_tasks = chosen_tasks.where(tasks.c.network == name, tasks.c.version == version)
    task_rows = connection.execute(chosen_tasks).mappings().all()
    used = select(workloads).where(workloads.c.key.in_(select(chosen_tasks.subquery().c.workload_key)))
    by_key = {w.key: w for w in rows.readable(connection.execute(used).mappings(), rows.workload_of)}
    by_network: dict[tuple[str, str], list[Any]] = {}
    for row in task_rows:
        by_network.setdefault((row["network"], row["version"]), []).append(row)

    def network_of(row: RowMapping) -> NetworkVersion:
        own = by_network.get((row["name"], row["version"]), ())
        return rows.network_of(row, tuple(rows.task_of(task, by_key) for task in own))

    found = connection.execute(chosen_networks).mappings()
    versions = rows.readable(found, network_of) if name is None else [network_of(row) for row in found]
    return sorted(versions, key=lambda network: (network.name, network.version))


def _lock_network(connection: Connection, name: str, version: str) -> None:
    """Keep the version as it is until the transaction ends.

    Raises:
        NotFound: There is none.
    """
    table = tables.networks
    query = select(table.c.name).where(table.c.name == name, table.c.version == version).with_for_update()
    if connection.execute(query).first() is None:
        raise _no_network(name, version)


def _no_network(name: str, version: str) -> NotFound:
    message = f"no network {name!r} version {version!r} in the registry"
    return NotFound(message, hint="`bcd-registry networks list` lists them")


def _require_held(connection: Connection, fences: Sequence[Lease]) -> None:
    """Keep the leases where they are until the transaction ends.

    Raises:
        Conflict: One of them went to another holder.
    """
    if not fences:
        return
    found = connection.execute(statements.held_leases(connection, [fence.name for fence in fences])).mappings()
    held = {row["name"]: rows.lease_of(row) for row in found}
    for fence in fences:
        lease = held.get(fence.name)
        if lease is None or (lease.holder, lease.token) != (fence.holder, fence.token):
            other = "nobody" if lease is None else lease.holder
            raise Conflict(
                f"the lease {fence.name!r} of {fence.holder} went to {other}", hint="what it was for is another's now"
            )


def _in_order(new: Iterable[rows.Row], *names: str) -> list[rows.Row]:
    """Ordered by primary key: writers that lock rows in one order never wait for each other in a circle."""
    return sorted(new, key=lambda row: [row[name] for name in names])
