"""Bundles and a registry: what of it goes into one, and what of one it takes in."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from .bundle import Bundle
from .errors import CorruptBlob, NotFound
from .model import NetworkVersion, RecordState, TuningRecord, Workload
from .registry import Registry

_UNTUNED = "untuned"
"""The sketch of a record that says: searched, and nothing was faster than the untuned program, see `bcd_tuner.plan`."""

_ALL = 1_000_000
_STATES = list(RecordState)


@dataclass(frozen=True, slots=True)
class TakenIn:
    """What a registry took of records that somebody else measured.

    Attributes:
        n_published: Records that it serves as results now.
        n_priors: Records that it keeps as priors now.
        n_known: Records that it had already, in the same or a further state; what was quarantined or taken back here stays so.
        n_refused: Records that are of no use as priors: they say that the untuned program is the best.
        new_network: Whether the version of the network was new.
        notes: Lines for people.
    """

    n_published: int = 0
    n_priors: int = 0
    n_known: int = 0
    n_refused: int = 0
    new_network: bool = False
    notes: tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        """Whether the registry holds more than before."""
        return bool(self.n_published or self.n_priors or self.new_network)


def bundle_of(registry: Registry, name: str, version: str) -> tuple[Bundle, list[str]]:
    """A version of a network with the published records of its tasks, in every environment.

    Returns:
        The bundle, and one line for each record that is left out: its trace is damaged.

    Raises:
        NotFound: There is no such version.
    """
    network = registry.get_network(name, version)
    records, left_out = [], []
    for record in _published(registry, network):
        try:
            records.append(registry.get_record(record.id))
        except (CorruptBlob, NotFound) as error:
            left_out.append(f"record {record.id[:12]} is left out: {error.message}")
    ids = {record.id for record in records}
    records = [_portable(record, ids) for record in records]
    environments = [registry.get_environment(key) for key in sorted({record.environment_key for record in records})]
    return Bundle(network, tuple(environments), tuple(sorted(records, key=lambda record: record.id))), left_out


def take_in(registry: Registry, bundle: Bundle, *, trust: bool) -> TakenIn:
    """Store what is new of a bundle. What is there already stays as it is, so that doing it again changes nothing.

    Args:
        trust: Take its published records as results. Otherwise each record becomes a prior: measured, of a search of no depth.

    Raises:
        RegistryError: The registry refuses it; what came before is stored.
    """
    here = {record.id: record for workload in bundle.workloads for record in _records(registry, workload)}
    claimed = [record if trust else _as_prior(record) for record in bundle.records]
    useful = [record for record in claimed if record.state is RecordState.PUBLISHED or record.sketch != _UNTUNED]
    new = [record for record in useful if record.id not in here or _is_further(record, here[record.id])]
    priors = [record for record in new if record.state is not RecordState.PUBLISHED]
    published = [record for record in new if record.state is RecordState.PUBLISHED]
    registered, notes = _register(registry, bundle)
    if priors:
        registry.keep(priors)
    if published:
        registry.publish(published)
    return TakenIn(
        n_published=len(published),
        n_priors=len(priors),
        n_known=len(useful) - len(new),
        n_refused=len(claimed) - len(useful),
        new_network=registered,
        notes=tuple(notes),
    )


def known_ids(registry: Registry, workloads: Iterable[Workload]) -> set[str]:
    """Ids of all records of the workloads, whatever their state."""
    return {record.id for workload in workloads for record in _records(registry, workload)}


def _records(registry: Registry, workload: Workload) -> list[TuningRecord]:
    return registry.list_records(workload=workload.key, limit=_ALL)


def _published(registry: Registry, network: NetworkVersion) -> list[TuningRecord]:
    """Those that a lookup would serve as results in their own environment."""
    found = registry.list_records(network=(network.name, network.version), limit=_ALL)
    return [r for r in found if r.state is RecordState.PUBLISHED and not r.invalidated and not r.drift]


def _portable(record: TuningRecord, ids: set[str]) -> TuningRecord:
    """Without what only this registry holds: other records, and cost models."""
    parent = record.parent_id if record.parent_id in ids else None
    return dataclasses.replace(record, parent_id=parent, cost_model_id=None, reason="")


def _as_prior(record: TuningRecord) -> TuningRecord:
    """Its claims of how much was searched would keep others from searching, so they are not taken over."""
    return record.with_state(RecordState.MEASURED, trials=0, depth=0)


def _is_further(record: TuningRecord, known: TuningRecord) -> bool:
    if known.invalidated:
        return False
    return _STATES.index(record.state) > _STATES.index(known.state)


def _register(registry: Registry, bundle: Bundle) -> tuple[bool, list[str]]:
    """Store what the records refer to; a version of the network that is there stays what it is."""
    network = bundle.network
    for environment in bundle.environments:
        registry.put_environment(environment)
    registry.put_workloads(bundle.workloads)
    try:
        known = registry.get_network(network.name, network.version)
    except NotFound:
        registry.register_network(network)
        return True, []
    same = (known.digest, known.tasks) == (network.digest, network.tasks)
    label = f"{network.name}:{network.version}" if network.version else network.name
    return False, [] if same else [f"{label} is known here with other bytes or tasks: it stays as it is here"]
