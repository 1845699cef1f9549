"""The catalog over SQLAlchemy."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Engine,
    Select,
    Table,
    and_,
    case,
    delete,
    func,
    or_,
    select,
    union,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from bcd_registry.errors import NotFound
from bcd_registry.model import (
    CostModelSnapshot,
    Environment,
    NetworkVersion,
    RecordState,
    Refutation,
    RunSummary,
    TuningRecord,
    Workload,
    canonical_json,
)
from bcd_registry.staleness import environment_key

from . import rows, tables
from .engines import BUSY_TIMEOUT_S, file_engine, memory_engine, transaction
from .schema import create_or_check

_STATE_ORDER = {state.value: rank for rank, state in enumerate(RecordState)}
_HEX = frozenset("0123456789abcdef")


class SqlCatalog:
    """A `Catalog` over an engine. Threads may share it; after a fork the child opens its own."""

    def __init__(self, engine: Engine) -> None:
        """Use a database that is at this release's revision already; see `open_file` and `open_memory`."""
        self._engine = engine

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
    def _opened(cls, engine: Engine) -> SqlCatalog:
        try:
            create_or_check(engine)
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
            connection.execute(_insert(connection, tables.environments).on_conflict_do_nothing(), row)
        return key

    def get_environment(self, key: str) -> Environment:
        """See `Catalog.get_environment`."""
        query = select(tables.environments.c.fields).where(tables.environments.c.key == key)
        with transaction(self._engine, write=False) as connection:
            fields = connection.execute(query).scalar_one_or_none()
        if fields is None:
            raise NotFound(f"no environment {key[:12]} in the catalog")
        return Environment(json.loads(fields))

    def get_environments(self, keys: Sequence[str]) -> Mapping[str, Environment]:
        """See `Catalog.get_environments`."""
        table = tables.environments
        query = select(table).where(table.c.key.in_(set(keys)))
        with transaction(self._engine, write=False) as connection:
            return {row["key"]: Environment(json.loads(row["fields"])) for row in connection.execute(query).mappings()}

    def put_workloads(self, workloads: Sequence[Workload]) -> None:
        """See `Catalog.put_workloads`."""
        if workloads:
            with transaction(self._engine, write=True) as connection:
                insert = _insert(connection, tables.workloads).on_conflict_do_nothing()
                connection.execute(insert, [rows.workload_row(w) for w in workloads])

    def get_workloads(self, keys: Sequence[str]) -> Mapping[str, Workload]:
        """See `Catalog.get_workloads`."""
        with transaction(self._engine, write=False) as connection:
            return _workloads(connection, keys)

    def put_network(self, network: NetworkVersion) -> None:
        """See `Catalog.put_network`."""
        table = tables.networks
        with transaction(self._engine, write=True) as connection:
            connection.execute(delete(table).where(table.c.name == network.name, table.c.version == network.version))
            connection.execute(table.insert(), rows.network_row(network))
            if network.tasks:
                connection.execute(tables.network_tasks.insert(), rows.task_rows(network))

    def list_networks(self) -> list[NetworkVersion]:
        """See `Catalog.list_networks`."""
        with transaction(self._engine, write=False) as connection:
            return _networks(connection)

    def get_network(self, name: str, version: str) -> NetworkVersion:
        """See `Catalog.get_network`."""
        with transaction(self._engine, write=False) as connection:
            found = _networks(connection, name, version)
        if not found:
            raise NotFound(
                f"no network {name!r} version {version!r} in the registry", hint="`bcd-registry networks list` lists them"
            )
        return found[0]

    def add_records(self, records: Sequence[TuningRecord], trace_digests: Sequence[str]) -> None:
        """See `Catalog.add_records`."""
        if records:
            with transaction(self._engine, write=True) as connection:
                new = [rows.record_row(r, d) for r, d in zip(records, trace_digests, strict=True)]
                connection.execute(_upsert_record(connection), new)

    def set_record_states(self, ids: Sequence[str], state: RecordState, reason: str) -> None:
        """See `Catalog.set_record_states`."""
        table = tables.records
        chosen = table.c.id.in_(set(ids))
        with transaction(self._engine, write=True) as connection:
            missing = set(ids) - set(connection.execute(select(table.c.id).where(chosen)).scalars())
            if missing:
                raise NotFound(f"no record {_shortened(missing)} in the registry")
            connection.execute(update(table).where(chosen).values(state=state.value, reason=reason))

    def find_records(
        self, *, workloads: Sequence[str] = (), clusters: Sequence[str] = (), anchors: Sequence[str] = (), per_workload: int = 8
    ) -> list[tuple[TuningRecord, str]]:
        """See `Catalog.find_records`."""
        query = _best_records(_workloads_where(workloads, clusters, anchors), per_workload)
        with transaction(self._engine, write=False) as connection:
            return _records(connection, query)

    def list_records(
        self, *, workload: str | None = None, network: tuple[str, str] | None = None, limit: int = 100
    ) -> list[tuple[TuningRecord, str]]:
        """See `Catalog.list_records`."""
        table, tasks = tables.records, tables.network_tasks
        query = select(table).order_by(table.c.created_at.desc(), table.c.id).limit(limit)
        if workload is not None:
            query = query.where(_begins_with(table.c.workload_key, workload))
        if network is not None:
            of_network = select(tasks.c.workload_key).where(tasks.c.network == network[0], tasks.c.version == network[1])
            query = query.where(table.c.workload_key.in_(of_network))
        with transaction(self._engine, write=False) as connection:
            return _records(connection, query)

    def get_record(self, id_prefix: str) -> tuple[TuningRecord, str]:
        """See `Catalog.get_record`."""
        table = tables.records
        query = select(table).where(_begins_with(table.c.id, id_prefix)).order_by(table.c.id).limit(4)
        with transaction(self._engine, write=False) as connection:
            found = _records(connection, query)
        if not found:
            raise NotFound(f"no record {id_prefix!r} in the registry", hint="`bcd-registry records list` lists them")
        if len(found) > 1:
            names = _shortened(record.id for record, _ in found)
            raise NotFound(f"{id_prefix!r} names more than one record: {names}", hint="give more digits of the id")
        return found[0]

    def add_refutations(self, refutations: Sequence[Refutation]) -> None:
        """See `Catalog.add_refutations`."""
        if refutations:
            with transaction(self._engine, write=True) as connection:
                connection.execute(_upsert_refutation(connection), [rows.refutation_row(r) for r in refutations])

    def find_refutations(self, clusters: Sequence[str]) -> list[Refutation]:
        """See `Catalog.find_refutations`."""
        table = tables.refutations
        query = select(table).where(table.c.cluster.in_(set(clusters)))
        order = (table.c.created_at.desc(), *table.primary_key.columns)
        with transaction(self._engine, write=False) as connection:
            return [rows.refutation_of(row) for row in connection.execute(query.order_by(*order)).mappings()]

    def forget_refutations(self, record_ids: Sequence[str]) -> None:
        """See `Catalog.forget_refutations`."""
        table = tables.refutations
        with transaction(self._engine, write=True) as connection:
            connection.execute(delete(table).where(table.c.record_id.in_(set(record_ids))))

    def add_cost_model(self, snapshot: CostModelSnapshot, booster_digest: str, samples_digest: str) -> None:
        """See `Catalog.add_cost_model`."""
        row = rows.cost_model_row(snapshot, booster_digest, samples_digest)
        with transaction(self._engine, write=True) as connection:
            connection.execute(_insert(connection, tables.cost_models).on_conflict_do_nothing(), row)

    def latest_cost_model(self, target: str) -> tuple[CostModelSnapshot, str, str] | None:
        """See `Catalog.latest_cost_model`."""
        table = tables.cost_models
        query = select(table).where(table.c.target == target).order_by(table.c.created_at.desc(), table.c.id).limit(1)
        with transaction(self._engine, write=False) as connection:
            row = connection.execute(query).mappings().one_or_none()
        return None if row is None else rows.cost_model_of(row)

    def put_run(self, run: RunSummary) -> None:
        """See `Catalog.put_run`."""
        row = rows.run_row(run)
        with transaction(self._engine, write=True) as connection:
            insert = _insert(connection, tables.runs)
            connection.execute(insert.on_conflict_do_update(index_elements=["id"], set_=_excluded(insert, row)), row)

    def list_runs(self, *, network: str | None = None, version: str | None = None, limit: int = 20) -> list[RunSummary]:
        """See `Catalog.list_runs`."""
        table = tables.runs
        query = select(table).order_by(table.c.created_at.desc(), table.c.id).limit(limit)
        if network is not None:
            query = query.where(table.c.network == network)
        if version is not None:
            query = query.where(table.c.version == version)
        with transaction(self._engine, write=False) as connection:
            return [rows.run_of(row) for row in connection.execute(query).mappings()]

    def named_blobs(self) -> set[str]:
        """See `Catalog.named_blobs`."""
        models = tables.cost_models.c
        query = union(select(tables.records.c.trace_digest), select(models.booster_digest), select(models.samples_digest))
        with transaction(self._engine, write=False) as connection:
            return set(connection.execute(query).scalars())


def _insert(connection: Connection, table: Table) -> sqlite.Insert | postgresql.Insert:
    """An insert that can say what to do on a conflict; the two dialects spell it alike."""
    return sqlite.insert(table) if connection.dialect.name == "sqlite" else postgresql.insert(table)


def _excluded(insert: sqlite.Insert | postgresql.Insert, names: Iterable[str]) -> dict[str, Any]:
    return {name: insert.excluded[name] for name in names if name != "id"}


def _upsert_record(connection: Connection) -> sqlite.Insert | postgresql.Insert:
    table = tables.records
    insert = _insert(connection, table)
    return insert.on_conflict_do_update(
        index_elements=["id"],
        set_=_excluded(insert, table.c.keys()),
        where=_state_rank(insert.excluded.state) >= _state_rank(table.c.state),
    )


def _upsert_refutation(connection: Connection) -> sqlite.Insert | postgresql.Insert:
    table = tables.refutations
    insert = _insert(connection, table)
    return insert.on_conflict_do_update(index_elements=table.primary_key.columns.keys(), set_=_excluded(insert, table.c.keys()))


def _state_rank(state: ColumnElement[str]) -> ColumnElement[int]:
    return case(_STATE_ORDER, value=state)


def _workloads_where(workloads: Sequence[str], clusters: Sequence[str], anchors: Sequence[str]) -> Select[tuple[str]]:
    table = tables.workloads
    chosen = or_(table.c.key.in_(workloads), table.c.cluster.in_(clusters), table.c.anchor.in_(anchors))
    return select(table.c.key).where(chosen)


def _best_records(workload_keys: Select[tuple[str]], per_workload: int) -> Select[Any]:
    table = tables.records
    order = (_state_rank(table.c.state).desc(), table.c.median_s, table.c.id)
    place = func.row_number().over(partition_by=(table.c.workload_key, table.c.environment_key), order_by=order)
    usable = and_(table.c.workload_key.in_(workload_keys), table.c.state != RecordState.QUARANTINED.value)
    ranked = select(table, place.label("place")).where(usable).subquery()
    columns = [ranked.c[column.name] for column in table.c]
    by_place = (ranked.c.workload_key, ranked.c.environment_key, ranked.c.place)
    return select(*columns).where(ranked.c.place <= per_workload).order_by(*by_place)


def _records(connection: Connection, query: Select[Any]) -> list[tuple[TuningRecord, str]]:
    return [rows.record_of(row) for row in connection.execute(query).mappings()]


def _workloads(connection: Connection, keys: Sequence[str]) -> dict[str, Workload]:
    table = tables.workloads
    found = connection.execute(select(table).where(table.c.key.in_(set(keys)))).mappings()
    return {row["key"]: rows.workload_of(row) for row in found}


def _networks(connection: Connection, name: str | None = None, version: str | None = None) -> list[NetworkVersion]:
    """Every network, or that one, in three queries."""
    networks, tasks, workloads = tables.networks, tables.network_tasks, tables.workloads
    chosen_networks = select(networks).order_by(networks.c.name, networks.c.version)
    chosen_tasks = select(tasks).order_by(tasks.c.position)
    if name is not None:
        chosen_networks = chosen_networks.where(networks.c.name == name, networks.c.version == version)
        chosen_tasks = chosen_tasks.where(tasks.c.network == name, tasks.c.version == version)
    task_rows = connection.execute(chosen_tasks).mappings().all()
    used = select(workloads).where(workloads.c.key.in_(select(chosen_tasks.subquery().c.workload_key)))
    by_key = {row["key"]: rows.workload_of(row) for row in connection.execute(used).mappings()}
    by_network: dict[tuple[str, str], list[Any]] = {}
    for row in task_rows:
        by_network.setdefault((row["network"], row["version"]), []).append(rows.task_of(row, by_key))
    return [
        rows.network_of(row, tuple(by_network.get((row["name"], row["version"]), ())))
        for row in connection.execute(chosen_networks).mappings()
    ]


def _begins_with(column: Column[str], prefix: str) -> ColumnElement[bool]:
    """Whether a hex digest begins with the prefix; a range, since LIKE uses no index."""
    prefix = prefix.lower()
    return and_(column >= prefix, column < f"{prefix}g") if set(prefix) <= _HEX else column.is_(None)


def _shortened(ids: Iterable[str]) -> str:
    return ", ".join(sorted(i[:12] for i in ids))
