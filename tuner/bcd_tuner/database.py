"""RegistryDatabase: the registry as MetaSchedule's database, for TVM scripts that tune and compile by themselves."""

from __future__ import annotations

import bisect
import dataclasses
import logging
import math
import statistics
import sys
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm_ffi
from tvm.ir import IRModule
from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.database import PyDatabase
from tvm.s_tir.meta_schedule.database import TuningRecord as TvmRecord
from tvm.s_tir.meta_schedule.database import Workload as TvmWorkload
from tvm.target import Target

from bcd_registry.errors import BcdError, CorruptBlob, NetworkError
from bcd_registry.model import Grade, Json, Match, Prior, RecordState, TuningRecord, Workload, digest_of
from bcd_registry.registry import Registry
from bcd_registry.staleness import environment_key

from .cost_model import Names
from .environment import current_environment
from .plan import UNTUNED_SKETCH
from .renaming import block_names, carry, names_in
from .replay import trace_as_json
from .space import read_decisions
from .subgraph import workload_of
from .targets import canonical_target
from .tasks import canonicalise
from .workers import WarmPool

_LOG = logging.getLogger(__name__)

KEPT_A_WORKLOAD = 3
"""A record becomes a prior in the registry when it is among so many of the fastest of its workload in this run."""

_CLEARLY = 0.95
"""What was measured in this run takes the place of a served record when it takes less than this share of its latency."""

_FAILED_S = 1e9
"""TVM writes 1e10 s for a candidate that failed."""

_ANY_DEPTH = sys.maxsize
"""Deeper than any search was: a lookup then answers with priors, and not with a result."""


@dataclass(slots=True)
class _Held:
    """What is held of the modules of one structure, whatever their names.

    Attributes:
        canonical: Such a module under canonical names, on which the registry's traces replay.
        workload: A stand-in when the module has no key.
        has_key: Whether the registry can know it.
        spent: Trials that earlier runs spent on it in this environment; None before they were asked for.
        fastest: The fastest of this run as the registry has it.
        named: TVM's workload for each set of names that was met.
        records: Latency in seconds (infinite for a failure), a running number, and the record; the fastest first.
    """

    canonical: IRModule
    workload: Workload
    has_key: bool
    spent: int | None = None
    fastest: TuningRecord | None = None
    named: dict[tuple[str, ...], TvmWorkload] = field(default_factory=dict)
    records: list[tuple[float, int, TvmRecord]] = field(default_factory=list)


@derived_object
class RegistryDatabase(PyDatabase):  # type: ignore[misc]
    """MetaSchedule's database over a registry.

    It serves the published records of the registry, and what was committed to it since it was made. The fastest of what is
    committed is kept in the registry as priors; nothing is checked, so nothing is published. Records of another target or
    environment are never served, they are priors at most. A registry that fails is a warning in the log: tuning goes on, and
    what was committed is still served.

    Modules may have any names. Those without a key (open dimensions, an operator that no key can be given) live in memory only.

    Args:
        target: What is tuned for; queries for another target find nothing.
        measurement: How the runner measures: `WarmPool.measurement`, by default that of a pool with default arguments.
        unchecked: Serve what earlier runs measured in this environment, too, although nobody checked it.

    Attributes:
        environment: What latencies depend on here.
        run_id: The run that its records belong to.
    """

    def __init__(
        self, registry: Registry, target: Target, *, measurement: Mapping[str, Json] | None = None, unchecked: bool = False
    ) -> None:
        super().__init__()
        self.environment = current_environment(target, measurement or WarmPool.default_measurement())
        self.run_id = uuid.uuid4().hex
        self._registry, self._target, self._unchecked = registry, target, unchecked
        self._environment_key = environment_key(self.environment)
        self._held: dict[Any, _Held] = {}
        self._warned: set[str] = set()

    def has_workload(self, mod: IRModule) -> bool:
        """Whether the module was committed here, or is known to the registry."""
        held = self._hold(mod)
        return bool(held.named) or self._match(held).grade in (Grade.EXACT, Grade.STALE)

    def commit_workload(self, mod: IRModule) -> TvmWorkload:
        """TVM's workload of the module, the same one for the same names."""
        return self._named(self._hold(mod), mod)

    def commit_tuning_record(self, record: TvmRecord) -> None:
        """Take in a measured candidate; one of the fastest of its workload goes to the registry as a prior at once."""
        held = self._hold(record.workload.mod)
        latency_s = _median_s(record)
        bisect.insort(held.records, (latency_s, len(held.records), record))
        last_kept_s = held.records[:KEPT_A_WORKLOAD][-1][0]
        if held.has_key:
            self._keep(held, record if math.isfinite(latency_s) and latency_s <= last_kept_s else None)

    def get_top_k(self, workload: TvmWorkload, top_k: int) -> list[TvmRecord]:
        """The fastest valid records under the workload's names: committed here, or measured here by earlier runs."""
        held = self._hold(workload.mod)
        found: list[tuple[float, Any]] = [(s, record) for s, _, record in held.records[:top_k] if math.isfinite(s)]
        found += [(record.median_s, record) for record in self._earlier(held)]
        found.sort(key=lambda pair: pair[0])
        named = (self._under_names_of(workload, record, held) for _, record in found[:top_k])
        return [record for record in named if record is not None]

    def get_all_tuning_records(self) -> list[TvmRecord]:
        """Everything that was committed here, failures included; the registry's own records are not among it."""
        return [record for held in self._held.values() for _, _, record in held.records]

    def __len__(self) -> int:
        """How many records were committed here."""
        return sum(len(held.records) for held in self._held.values())

    def query_tuning_record(self, mod: IRModule, target: Target, workload_name: str | None = None) -> TvmRecord | None:
        """What to compile the module with; None for another target, and when the untuned program is the best known.

        The record's own module is structurally equal to `mod`, as `MetaScheduleApplyDatabase` needs it.
        """
        if canonical_target(target) != canonical_target(self._target):
            return None
        held = self._hold(mod)
        served_s, served = self._served(held, mod)
        own_s, _, own = held.records[0] if held.records else (math.inf, 0, None)
        if math.isfinite(own_s) and (math.isinf(served_s) or own_s < _CLEARLY * served_s):
            return own
        return served

    def priors_of(self, mod: IRModule) -> Sequence[Prior]:
        """What a search of the module can diffuse from, the nearest first: what `DiffusionSearch` asks for.

        What this run has kept by now is among it.
        """
        match = self._match(self._hold(mod), _ANY_DEPTH)
        return tuple(prior for prior in match.priors if prior.record.sketch != UNTUNED_SKETCH)

    def names_of(self, mod: IRModule) -> Names:
        """Workload key and cluster signature: what `DiffusionCostModel` asks for."""
        workload = self.workload_of(mod)
        return workload.key, workload.cluster

    def workload_of(self, mod: IRModule) -> Workload:
        """The module's workload; for one without a key a stand-in that shares nothing with any other."""
        return self._hold(mod).workload

    def lookup(self, workloads: Sequence[Workload], depths: Mapping[str, int]) -> list[Match]:
        """One match for each workload in this environment, see `Registry.lookup`; cold ones when the registry fails."""
        try:
            return self._registry.lookup(workloads, self.environment, depths)
        except BcdError as error:
            self._warn("the registry was not asked", error)
            return [Match(workload, Grade.COLD, None, (), error.message) for workload in workloads]

    def _match(self, held: _Held, depth: int = 0) -> Match:
        [match] = self.lookup([held.workload], {held.workload.key: depth})
        return match

    def _hold(self, mod: IRModule) -> _Held:
        key = tvm_ffi.StructuralKey(mod)
        held = self._held.get(key)
        if held is None:
            canonical = canonicalise(mod)
            workload = _described(canonical, block_names(mod))
            held = self._held[key] = _Held(canonical, workload or _stand_in(mod), has_key=workload is not None)
        return held

    def _named(self, held: _Held, mod: IRModule) -> TvmWorkload:
        names = names_in(mod)
        if names not in held.named:
            held.named[names] = TvmWorkload(mod)
        return held.named[names]

    def _keep(self, held: _Held, record: TvmRecord | None) -> None:
        """Give the registry a record, and tell it with the fastest one how many trials there were."""
        try:
            found = [] if record is None else [self._as_prior(held, record)]
            known = [*found, *([held.fastest] if held.fastest else [])]
            if known:
                fastest = min(known, key=lambda r: r.median_s)
                held.fastest = dataclasses.replace(fastest, trials=self._spent(held) + len(held.records))
                self._registry.keep([*(r for r in found if r.id != held.fastest.id), held.fastest])
        except BcdError as error:
            self._warn("a measured record was not kept", error)

    def _spent(self, held: _Held) -> int:
        """Trials of earlier runs; what records refer to is stored when it is asked first."""
        if held.spent is None:
            self._registry.put_environment(self.environment)
            self._registry.put_workloads([held.workload])
            held.spent = max((record.trials for record in self._earlier(held)), default=0)
        return held.spent

    def _as_prior(self, held: _Held, record: TvmRecord) -> TuningRecord:
        schedule = carry(trace_as_json(record), record.workload.mod, held.canonical)
        sketch, decisions = read_decisions(schedule)
        return TuningRecord(
            workload_key=held.workload.key,
            environment_key=self._environment_key,
            trace=trace_as_json(schedule),
            sketch=sketch,
            decisions=decisions,
            run_times_s=_run_times_s(record),
            trials=self._spent(held) + len(held.records),
            depth=0,
            state=RecordState.MEASURED,
            run_id=self.run_id,
            created_at=time.time(),
        )

    def _served(self, held: _Held, mod: IRModule) -> tuple[float, TvmRecord | None]:
        """Latency and record of the registry's result.

        Infinite without one; a latency without a record says that the untuned program is to be used.
        """
        while (record := self._result(held)) is not None:
            if record.sketch == UNTUNED_SKETCH:
                return record.median_s, None
            try:
                return record.median_s, self._as_tvm(record, held, mod)
            except CorruptBlob as error:
                if not self._quarantine(record, error.message):
                    break
        return math.inf, None

    def _result(self, held: _Held) -> TuningRecord | None:
        match = self._match(held)
        if match.record is not None or not self._unchecked:
            return match.record
        return min(self._measured_here(match), key=lambda record: record.median_s, default=None)

    def _earlier(self, held: _Held) -> list[TuningRecord]:
        """Records of the workload that other runs measured in this environment."""
        found = self._measured_here(self._match(held, _ANY_DEPTH))
        return [record for record in found if record.run_id != self.run_id]

    def _measured_here(self, match: Match) -> list[TuningRecord]:
        own = [prior.record for prior in match.priors if prior.record.workload_key == match.workload.key]
        return [r for r in own if r.environment_key == self._environment_key and r.sketch != UNTUNED_SKETCH]

    def _quarantine(self, record: TuningRecord, reason: str) -> bool:
        try:
            self._registry.quarantine([record.id], reason)
        except BcdError as error:
            self._warn("a record that does not replay was not marked", error)
            return False
        return True

    def _as_tvm(self, record: TuningRecord, held: _Held, mod: IRModule) -> TvmRecord:
        """A record of the registry under a module's names."""
        schedule = carry(record.trace, held.canonical, mod)
        return TvmRecord(schedule.trace, self._named(held, mod), list(record.run_times_s), self._target, None)

    def _under_names_of(self, workload: TvmWorkload, record: Any, held: _Held) -> TvmRecord | None:
        """TVM's or the registry's record for a module of the same structure; None when it does not replay there."""
        try:
            if isinstance(record, TuningRecord):
                return self._as_tvm(record, held, workload.mod)
            if record.workload.same_as(workload):
                return record
            schedule = carry(trace_as_json(record), record.workload.mod, workload.mod)
        except CorruptBlob:
            return None
        return TvmRecord(schedule.trace, workload, record.run_secs, record.target, record.args_info)

    def _warn(self, what: str, error: BcdError) -> None:
        """Say it once."""
        text = f"{what}: {error.message}"
        if text not in self._warned:
            self._warned.add(text)
            _LOG.warning("%s", text)


def _described(canonical: IRModule, names: Iterable[str]) -> Workload | None:
    try:
        return workload_of(canonical, "+".join(name for name in names if name != "root"))
    except (NetworkError, LookupError, TypeError, ValueError):  # the last three: open dimensions are not numbers
        return None


def _stand_in(mod: IRModule) -> Workload:
    name = digest_of("no key", str(tvm_ffi.structural_hash(mod)))
    return Workload(key=name, cluster=name, anchor=name, extents=(), flops=0.0, bytes_moved=0.0, op="", description="")


def _run_times_s(record: TvmRecord) -> tuple[float, ...]:
    return tuple(float(s) for s in record.run_secs or ())


def _median_s(record: TvmRecord) -> float:
    """Median of the timed runs, seconds; infinite for a failure."""
    times = _run_times_s(record)
    median = statistics.median(times) if times else math.inf
    return median if 0.0 < median < _FAILED_S else math.inf
