"""Any sequence of calls of a `Catalog` against dictionaries."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bcd_registry.errors import Conflict, NotFound
from bcd_registry.model import EventKind, Lease, RecordState, TuningRecord, Workload
from bcd_registry.ports import Catalog

from .values import (
    ENVIRONMENT,
    hex_of,
    make_environment,
    make_event,
    make_network,
    make_record,
    make_refutation,
    make_workload,
)

_WORKLOADS = tuple(make_workload(f"w{i}", cluster=f"c{i // 2}", anchor="a") for i in range(4))
_ENVIRONMENTS = (ENVIRONMENT, make_environment(tvm="0.26.0"))
_STATES = tuple(RecordState)
_ALL = 10_000
_LONG_S = 1000.0

_workloads = st.sampled_from(_WORKLOADS)
_versions = st.sampled_from(["1", "2"])
_holders = st.sampled_from(["run-1", "run-2", "run-3"])
_leases = st.sampled_from(["c", "d"])
_states = st.sampled_from(_STATES)


@dataclass(frozen=True)
class _New:
    """A record to be: of few runs, so that it meets others of its id."""

    workload: Workload
    environment: int
    run: int
    state: RecordState
    ms: int


_news = st.lists(st.builds(_New, _workloads, st.integers(0, 1), st.integers(0, 3), _states, st.integers(1, 3)), max_size=4)


@dataclass
class _Held:
    """A lease as the model knows it: a long one is held, a short one has expired already."""

    lease: Lease
    long: bool


@dataclass
class _Model:
    """What must be there.

    Attributes:
        records: By id, with the digest of the trace.
        networks: Workloads' keys by version.
        refuted: Pairs of record and workload.
        holding: Events that hold each record back, oldest first.
        n_events: How many are stored.
        seen: Every lease that was ever given.
    """

    records: dict[str, tuple[TuningRecord, str]] = field(default_factory=dict)
    networks: dict[str, tuple[str, ...]] = field(default_factory=dict)
    pins: set[str] = field(default_factory=set)
    refuted: set[tuple[str, str]] = field(default_factory=set)
    holding: dict[str, list[str]] = field(default_factory=dict)
    n_events: int = 0
    leases: dict[str, _Held] = field(default_factory=dict)
    seen: list[Lease] = field(default_factory=list)

    def add(self, record: TuningRecord, digest: str) -> None:
        known = self.records.get(record.id)
        if known is None or _STATES.index(record.state) >= _STATES.index(known[0].state):
            self.records[record.id] = (dataclasses.replace(record, trace=None), digest)
            self.mark_held([record.id])

    def remove(self, ids: Iterable[str]) -> None:
        for record_id in ids:
            del self.records[record_id]
            self.holding.pop(record_id, None)
        self.refuted = {pair for pair in self.refuted if pair[0] in self.records}

    def mark_held(self, ids: Iterable[str]) -> None:
        for record_id in ids:
            record, digest = self.records[record_id]
            holding = self.holding.get(record_id) or [""]
            self.records[record_id] = (dataclasses.replace(record, invalidated=holding[-1]), digest)

    def best(self, records: Iterable[TuningRecord]) -> dict[tuple[str, str], list[str]]:
        """Ids by workload and environment, best first, without quarantined and invalidated ones."""
        usable = [r for r in records if r.state is not RecordState.QUARANTINED and not r.invalidated]
        ordered = sorted(usable, key=lambda r: (-_STATES.index(r.state), r.median_s, r.id))
        places: dict[tuple[str, str], list[str]] = {}
        for record in ordered:
            places.setdefault((record.workload_key, record.environment_key), []).append(record.id)
        return places

    def holds(self, lease: Lease) -> bool:
        held = self.leases.get(lease.name)
        return held is not None and (held.lease.holder, held.lease.token) == (lease.holder, lease.token)


class CatalogMachine(RuleBasedStateMachine):
    """Inherit it, give `open_catalog` and take its `TestCase`.

    Records, states, events, networks, pins, refutations and leases.
    """

    def __init__(self) -> None:
        super().__init__()
        self.catalog = self.open_catalog()
        self.model = _Model()
        self.catalog.put_workloads(_WORKLOADS)
        self.environments = [self.catalog.put_environment(environment) for environment in _ENVIRONMENTS]

    def open_catalog(self) -> Catalog:
        """An empty catalog."""
        raise NotImplementedError

    @rule(new=_news)
    def add_records(self, new: Sequence[_New]) -> None:
        """Store records, new or known, in any state."""
        self._add(new, [])

    @precondition(lambda self: self.model.seen)
    @rule(new=_news, data=st.data())
    def add_records_behind_a_fence(self, new: Sequence[_New], data: st.DataObject) -> None:
        """Store them with leases that are held, or not any more."""
        self._add(new, data.draw(st.lists(st.sampled_from(self.model.seen), min_size=1, max_size=2)))

    @precondition(lambda self: self.model.records)
    @rule(state=_states, data=st.data())
    def set_states(self, state: RecordState, data: st.DataObject) -> None:
        """Move records to a state, forwards or backwards."""
        ids = self._some_records(data)
        self.catalog.set_record_states(ids, state, "moved")
        for record_id in ids:
            record, digest = self.model.records[record_id]
            self.model.records[record_id] = (record.with_state(state, reason="moved"), digest)

    @precondition(lambda self: self.model.records)
    @rule(data=st.data())
    def remove_records(self, data: st.DataObject) -> None:
        """Remove records, and one that is not there."""
        ids = self._some_records(data)
        self.catalog.remove_records([*ids, hex_of("none")])
        self.model.remove(ids)

    @rule(keep=st.integers(0, 3))
    def remove_beaten_records(self, keep: int) -> None:
        """Remove what `keep` better ones beat, but nothing of pinned networks."""
        pinned = {key for version in self.model.pins for key in self.model.networks.get(version, ())}
        places = self.model.best(record for record, _ in self.model.records.values())
        expected = {i for (workload, _), ids in places.items() if workload not in pinned for i in ids[keep:]}
        beaten = self.catalog.beaten_records(keep)
        assert len(beaten) == len(set(beaten))
        assert set(beaten) == expected
        all_of_them = [*self.model.records, hex_of("none")]
        removed = self.catalog.remove_beaten(all_of_them, keep)
        assert sorted(removed) == sorted(beaten)
        self.model.remove(removed)

    @precondition(lambda self: self.model.records)
    @rule(workload=_workloads, data=st.data())
    def refute(self, workload: Workload, data: st.DataObject) -> None:
        """Say of records that they misled."""
        ids = self._some_records(data)
        self.catalog.add_refutations([make_refutation(self.model.records[i][0], workload) for i in ids])
        self.model.refuted |= {(i, workload.key) for i in ids}

    @precondition(lambda self: self.model.records)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        """Take it back."""
        ids = self._some_records(data)
        self.catalog.forget_refutations(ids)
        self.model.refuted = {pair for pair in self.model.refuted if pair[0] not in ids}

    @precondition(lambda self: self.model.records)
    @rule(data=st.data())
    def invalidate(self, data: st.DataObject) -> None:
        """Take records back, those that are taken back already as well."""
        ids = self._some_records(data)
        event = make_event(*ids, id=self._next_event(), created_at=float(self.model.n_events))
        self.catalog.invalidate_records(event)
        for record_id in ids:
            self.model.holding.setdefault(record_id, []).append(event.id)
        self.model.mark_held(ids)

    @precondition(lambda self: self.model.records)
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        """Undo all that holds some records."""
        self._restore(self._some_records(data), None)

    @precondition(lambda self: any(self.model.holding.values()))
    @rule(data=st.data())
    def undo(self, data: st.DataObject) -> None:
        """Undo one event."""
        events = sorted({event for holding in self.model.holding.values() for event in holding})
        undone = data.draw(st.sampled_from(events))
        self._restore(self.catalog.get_event(undone).records, undone)

    def _restore(self, ids: Sequence[str], undone: str | None) -> None:
        holding = self.model.holding
        held = {i for i in ids if (holding.get(i) if undone is None else undone in holding.get(i, ()))}
        event = make_event(*ids, kind=EventKind.RESTORED, id=self._next_event(), created_at=float(self.model.n_events))
        assert self.catalog.restore_records(event, undone=undone) == tuple(sorted(held))
        self.model.n_events -= not held
        for record_id in held:
            holding[record_id] = [] if undone is None else [e for e in holding[record_id] if e != undone]
        self.model.mark_held(held)

    def _next_event(self) -> str:
        self.model.n_events += 1
        return f"{self.model.n_events:032x}"

    @rule(version=_versions, workloads=st.lists(_workloads, max_size=3))
    def put_network(self, version: str, workloads: Sequence[Workload]) -> None:
        """Store a version, new or not."""
        self.catalog.put_network(make_network("ocr", version, tuple(workloads)))
        self.model.networks[version] = tuple(w.key for w in workloads)

    @rule(version=_versions)
    def pin(self, version: str) -> None:
        """Pin a version, there or not."""
        known = version in self.model.networks
        with contextlib.nullcontext() if known else pytest.raises(NotFound):
            self.catalog.pin_network("ocr", version)
        if known:
            self.model.pins.add(version)

    @rule(version=_versions)
    def unpin(self, version: str) -> None:
        """Unpin a version, pinned or not."""
        self.catalog.unpin_network("ocr", version)
        self.model.pins.discard(version)

    @rule(version=_versions)
    def delete_network(self, version: str) -> None:
        """Delete a version, there or not, pinned or not."""
        if version not in self.model.networks:
            with pytest.raises(NotFound):
                self.catalog.delete_network("ocr", version)
        elif version in self.model.pins:
            with pytest.raises(Conflict):
                self.catalog.delete_network("ocr", version)
        else:
            self.catalog.delete_network("ocr", version)
            del self.model.networks[version]

    @rule(name=_leases, holder=_holders, long=st.booleans())
    def acquire(self, name: str, holder: str, long: bool) -> None:
        """Ask for a lease, free or not, for long or for no time."""
        held = self.model.leases.get(name)
        lease = self.catalog.acquire_lease(name, holder, _LONG_S if long else 0.0)
        if held is not None and held.lease.holder != holder and held.long:
            assert lease is None
            return
        assert lease is not None
        assert (lease.name, lease.holder) == (name, holder)
        if held is not None:
            assert lease.token == held.lease.token if held.lease.holder == holder else lease.token > held.lease.token
        self.model.leases[name] = _Held(lease, long)
        self.model.seen.append(lease)

    @precondition(lambda self: self.model.seen)
    @rule(long=st.booleans(), data=st.data())
    def renew(self, long: bool, data: st.DataObject) -> None:
        """Renew a lease, held or lost."""
        lease = data.draw(st.sampled_from(self.model.seen))
        renewed = self.catalog.renew_lease(lease, _LONG_S if long else 0.0)
        if self.model.holds(lease):
            assert renewed is not None
            assert renewed.token == lease.token
            self.model.leases[lease.name] = _Held(renewed, long)
        else:
            assert renewed is None

    @precondition(lambda self: self.model.seen)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        """Give a lease back, held or lost."""
        lease = data.draw(st.sampled_from(self.model.seen))
        self.catalog.release_lease(lease)
        if self.model.holds(lease):
            self.model.leases[lease.name].long = False

    @invariant()
    def lists_what_is_there(self) -> None:
        """Records, networks, pins and refutations are those of the model."""
        assert {r.id: (r, digest) for r, digest in self.catalog.list_records(limit=_ALL)} == self.model.records
        networks = {n.version: tuple(task.workload.key for task in n.tasks) for n in self.catalog.list_networks()}
        assert networks == self.model.networks
        assert self.catalog.list_pins() == {("ocr", version) for version in self.model.pins}
        refutations = self.catalog.find_refutations([w.cluster for w in _WORKLOADS])
        assert {(r.record_id, r.workload_key) for r in refutations} == self.model.refuted
        assert self.catalog.named_blobs() == {digest for _, digest in self.model.records.values()}

    @invariant()
    def finds_the_best(self) -> None:
        """At most two of each workload and environment of a cluster, in order."""
        inside = {w.key for w in _WORKLOADS if w.cluster == _WORKLOADS[0].cluster}
        found = self.catalog.find_records(workloads=[_WORKLOADS[0].key], clusters=[_WORKLOADS[0].cluster], per_workload=2)
        places: dict[tuple[str, str], list[str]] = {}
        for record, digest in found:
            assert self.model.records[record.id] == (record, digest)
            places.setdefault((record.workload_key, record.environment_key), []).append(record.id)
        best = self.model.best(record for record, _ in self.model.records.values() if record.workload_key in inside)
        assert places == {place: ids[:2] for place, ids in best.items()}

    @invariant()
    def counts_relatives(self) -> None:
        """Workloads of a cluster and with an anchor, each with its usable records by environment."""
        places = self.model.best(record for record, _ in self.model.records.values())
        by_cluster = {w.key for w in _WORKLOADS if w.cluster == _WORKLOADS[0].cluster}
        for keys, found in (
            (by_cluster, self.catalog.find_relatives(clusters=[_WORKLOADS[0].cluster])),
            ({w.key for w in _WORKLOADS}, self.catalog.find_relatives(anchors=[_WORKLOADS[0].anchor])),
        ):
            counts = {(r.workload.key, environment): n for r in found for environment, n in r.n_records.items()}
            assert counts == {place: len(ids) for place, ids in places.items() if place[0] in keys}
            assert len({r.workload.key for r in found}) == len(found)

    @invariant()
    def counts_what_is_there(self) -> None:
        """The counts are those of the model."""
        counts = self.catalog.count_rows()
        states = Counter(record.state for record, _ in self.model.records.values())
        assert {state: counts[state] for state in RecordState} == {state: states[state] for state in RecordState}
        assert counts["networks"] == len(self.model.networks)
        assert counts["pins"] == len(self.model.pins)
        assert counts["refutations"] == len(self.model.refuted)
        assert counts["events"] == self.model.n_events
        assert counts["invalidated"] == sum(bool(record.invalidated) for record, _ in self.model.records.values())

    def _add(self, new: Sequence[_New], fences: Sequence[Lease]) -> None:
        records = [self._record(each) for each in new]
        digests = [hex_of(f"{record.id} {record.state} {record.median_s}") for record in records]
        if all(self.model.holds(fence) for fence in fences):
            self.catalog.add_records(records, digests, fences=fences)
            for record, digest in zip(records, digests, strict=True):
                self.model.add(record, digest)
        else:
            with pytest.raises(Conflict):
                self.catalog.add_records(records, digests, fences=fences)

    def _record(self, new: _New) -> TuningRecord:
        key = self.environments[new.environment]
        return make_record(new.workload, key, run_id=f"run-{new.run}", state=new.state, run_times_s=(new.ms * 1e-3,))

    def _some_records(self, data: st.DataObject) -> list[str]:
        return data.draw(st.lists(st.sampled_from(sorted(self.model.records)), min_size=1, max_size=3, unique=True))
