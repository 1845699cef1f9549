"""The canary: what the registry would serve is measured again, before somebody relies on it. `drift.py` holds the test."""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm.s_tir import Schedule

from bcd_registry.errors import ConfigError, CorruptBlob, NotFound, RegistryError
from bcd_registry.model import Grade, Match, NetworkSpec, Prior, RecordState, Task, TuningRecord, canonical_json
from bcd_registry.registry import Registry
from bcd_registry.staleness import environment_key

from .canary_report import CanaryReport, RecordCheck
from .checking import Case, compare_many, measure_modules
from .drift import TOLERATED, Finding, Machine, RecordVerdict, Remeasured, judge
from .environment import current_environment
from .light_import import import_intrinsics
from .other_work import OtherWork
from .plan import UNTUNED_SKETCH, plan_tasks
from .prepare import Prepared, read_and_lower
from .replay import replay
from .report import ProgressEvent, ProgressSink
from .summary import Clock
from .targets import canonical_target, resolve_target
from .tasks import LoweredNetwork
from .worker_checks import Comparison
from .worker_process import JobError
from .workers import WarmPool

_REPEATS = 7
_BATCH = 8
_MOST_LISTED = 1000
_BUSY_SHARE = 0.1

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class CanaryRequest:
    """What the user asked for.

    Attributes:
        spec: The network, and its target.
        sample: Records to measure again; None for all.
        seed: Chooses them, and the inputs.
        mark: Tell the registry what was found.
    """

    spec: NetworkSpec
    sample: int | None = None
    seed: int = 0
    mark: bool = True

    def __post_init__(self) -> None:
        """Refuse what no generator takes."""
        if self.seed < 0:
            raise ConfigError(f"the seed is {self.seed}", hint="give 0 or more")
        if self.sample is not None and self.sample < 1:
            raise ConfigError(f"a sample of {self.sample} records checks nothing", hint="give 1 or more")


@dataclass(frozen=True, slots=True)
class Stored:
    """A published record of a task of this network.

    Attributes:
        mod: The task's module, which the record's trace is replayed on.
    """

    task: Task
    mod: Any
    record: TuningRecord

    @property
    def cost_s(self) -> float:
        """Its share of the network's latency as stored, seconds."""
        return self.task.weight * self.record.median_s


@dataclass(frozen=True, slots=True)
class Rechecked:
    """What measuring again found; nothing of it is in the registry yet."""

    checks: tuple[RecordCheck, ...]
    machine: Machine | None
    others: OtherWork

    @property
    def failed(self) -> dict[str, str]:
        """Why records may not be used any more, by id."""
        return {c.record: c.reason for c in self.checks if c.verdict is RecordVerdict.FAILED}

    @property
    def drifted(self) -> dict[str, str]:
        """How records drifted, by id."""
        return {c.record: c.reason for c in self.checks if c.verdict is RecordVerdict.DRIFTED}

    @property
    def notes(self) -> tuple[str, ...]:
        """A warning where other processes kept the cores busy."""
        share, hidden = self.others.share, TOLERATED * self.others.slowed
        busy = f"other processes used {share:.0%} of the cores: less than {hidden:.1f}x is not told from that"
        return (busy,) if share > _BUSY_SHARE else ()

    @property
    def recovered(self) -> list[str]:
        """Ids of records that were doubted and hold again."""
        return [c.record for c in self.checks if c.doubted and c.good]


def check_network_records(request: CanaryRequest, registry: Registry, *, progress: ProgressSink) -> CanaryReport:
    """Measure published records of a network's tasks again, and tell the registry which of them hold.

    What came out wrong is quarantined, what drifted becomes a prior only, and what was doubted and holds is served again.
    The registry is told at the end: what interrupts before leaves it as it was.

    Raises:
        ConfigError: The target or a shape is wrong.
        NetworkError: The network cannot be read.
        NotFound: The registry has no published record for the network here.
        RegistryError: The registry cannot be used.
    """
    spec, clock = request.spec, Clock()

    def say(phase: str, message: str) -> None:
        progress(ProgressEvent(phase, message, elapsed_s=clock.elapsed_s))

    target = resolve_target(spec.target)
    with WarmPool(target) as pool:
        import_intrinsics(target.kind.name)
        _, lowered = read_and_lower(spec, target, say)
        environment = current_environment(target, pool.measurement)
        say("lookup", f"looking up {len(lowered.tasks)} tasks")
        matches = registry.lookup([item.task.workload for item in lowered.tasks], environment, {})
        known = find_stored(lowered, matches, registry, environment_key(environment))
        if not known:
            name = f"{spec.name} {spec.version}".strip()
            raise NotFound(
                f"no published record of {name} can be used here",
                hint="`bcd-registry plan` says why; `bcd-registry tune` makes them",
            )
        chosen = choose(known, request.sample, request.seed)
        found = recheck(chosen, pool, seed=request.seed, say=lambda message: say("check", message))
    untold = mark(registry, found, spec) if request.mark else ()
    return CanaryReport(
        network=spec.name,
        version=spec.version,
        target=canonical_json(canonical_target(target)),
        seed=request.seed,
        n_known=len(known),
        records=found.checks,
        machine=found.machine,
        marked=request.mark and not untold,
        wall_s=clock.elapsed_s,
        notes=(*found.notes, *(untold if request.mark else ("read-only: nothing is marked",))),
    )


def find_stored(lowered: LoweredNetwork, matches: Sequence[Match], registry: Registry, environment: str) -> list[Stored]:
    """For each task what is served as its result, or would be but for a drift that an earlier canary found.

    Args:
        matches: Of the tasks, asked for at no depth.
        environment: Key of this environment.
    """
    found = []
    for item, match in zip(lowered.tasks, matches, strict=True):
        record = match.record or _doubted(registry, match, environment)
        if record is not None:
            found.append(Stored(item.task, item.mod, record))
    return found


def _doubted(registry: Registry, match: Match, environment: str) -> TuningRecord | None:
    """The fastest published record of this environment that drifted, with its trace; other priors may hide it in the match."""
    if match.grade is not Grade.STALE:
        return None
    listed = registry.list_records(workload=match.workload.key, limit=_MOST_LISTED)
    doubted = [r for r in listed if r.drift and r.state is RecordState.PUBLISHED and not r.invalidated]
    fastest = min((r for r in doubted if r.environment_key == environment), key=lambda r: r.median_s, default=None)
    try:
        return None if fastest is None else registry.get_record(fastest.id)
    except (NotFound, CorruptBlob):
        return None  # its trace is gone: lookups quarantine it when they need it


def choose(known: Sequence[Stored], n: int | None, seed: int) -> list[Stored]:
    """All of them or n, drawn by their share of the network's latency; the costliest first."""
    chosen = list(known)
    if n is not None and n < len(known):
        costs = np.array([stored.cost_s for stored in known])
        drawn = np.random.default_rng(seed).choice(len(known), n, replace=False, p=costs / costs.sum())
        chosen = [known[i] for i in drawn]
    return sorted(chosen, key=lambda stored: -stored.cost_s)


def recheck(chosen: Sequence[Stored], pool: WarmPool, *, seed: int, say: Say) -> Rechecked:
    """Measure records again, and once more those that drifted or failed; the registry is neither asked nor told.

    Args:
        say: Gets a line for people before each batch; what it raises ends the check.
    """
    tried, others = [_Tried.of(stored) for stored in chosen], OtherWork()
    for n_done, batch in _batches(tried):
        say(f"measuring records {n_done + 1} to {n_done + len(batch)} of {len(tried)}")
        with others.watched():
            _measure(batch, pool, seed)
    _, findings = judge([t.times for t in tried], others.slowed)
    again = [t for t, finding in zip(tried, findings, strict=True) if t.measurable and (t.broken or _is_drift(finding))]
    for n_done, batch in _batches(again):
        say(f"measuring {n_done + 1} to {n_done + len(batch)} of {len(again)} again, that drifted or failed")
        with others.watched():
            _measure(batch, pool, seed)
        for t in batch:
            t.confirmed = True
    _blame(again, pool)
    machine, findings = judge([t.times for t in tried], others.slowed)
    checks = tuple(t.as_check(finding) for t, finding in zip(tried, findings, strict=True))
    return Rechecked(checks, machine, others)


def _is_drift(finding: Finding) -> bool:
    return finding.verdict is RecordVerdict.DRIFTED


@dataclass(slots=True)
class _Tried:
    """A record on its way through the check.

    Attributes:
        schedule: None for the untuned program, and where the trace does not replay.
        broken: Why it cannot be used; empty while it can.
        excused: Why that is not the record's fault.
    """

    stored: Stored
    times: Remeasured
    schedule: Schedule | None = None
    broken: str = ""
    excused: str = ""
    confirmed: bool = False

    @classmethod
    def of(cls, stored: Stored) -> _Tried:
        record = stored.record
        if record.sketch == UNTUNED_SKETCH:
            return cls(stored, Remeasured((), (), record.median_s, ()))
        tried = cls(stored, Remeasured(record.run_times_s, (), record.untuned_s, ()))
        try:
            tried.schedule = replay(stored.mod, record.trace)
        except CorruptBlob as error:
            tried.broken = error.message
        return tried

    @property
    def is_untuned(self) -> bool:
        return self.stored.record.sketch == UNTUNED_SKETCH

    @property
    def measurable(self) -> bool:
        return self.is_untuned or self.schedule is not None

    def take(self, compared: Comparison) -> None:
        self.broken = "" if compared.equal else compared.error
        self.times = dataclasses.replace(self.times, now_s=compared.tuned_s, untuned_now_s=compared.reference_s)

    def as_check(self, finding: Finding) -> RecordCheck:
        task, record = self.stored.task, self.stored.record
        verdict, reason = self._judged(finding)
        now_s = self.times.untuned_now_s if self.is_untuned else self.times.now_s
        return RecordCheck(
            name=task.name,
            op=task.workload.op,
            workload_key=task.workload.key,
            weight=task.weight,
            record=record.id,
            verdict=verdict,
            stored_ms=record.median_s * 1e3,
            now_ms=_median_ms(now_s),
            stored_untuned_ms=None if record.untuned_s is None else record.untuned_s * 1e3,
            now_untuned_ms=_median_ms(self.times.untuned_now_s),
            factor=finding.factor,
            interval=None if finding.low is None or finding.high is None else (finding.low, finding.high),
            confirmed=self.confirmed,
            reason=reason,
            doubted=record.drift,
        )

    def _judged(self, finding: Finding) -> tuple[RecordVerdict, str]:
        if self.excused:
            return RecordVerdict.UNCLEAR, self.excused
        if self.broken:
            return RecordVerdict.FAILED, f"a canary found that it cannot be used: {self.broken}"
        if _is_drift(finding):
            if not self.confirmed:  # only the second time moved the others so that it shows
                return RecordVerdict.UNCLEAR, "it drifted beside what was measured the second time"
            return finding.verdict, f"{finding.factor:.2f}x as slow as stored ({finding.low:.2f}x to {finding.high:.2f}x)"
        return finding.verdict, "too noisy to tell" if finding.verdict is RecordVerdict.UNCLEAR else ""


def _median_ms(times_s: Sequence[float]) -> float | None:
    return statistics.median(times_s) * 1e3 if times_s else None


def _batches(tried: Sequence[_Tried]) -> Iterator[tuple[int, Sequence[_Tried]]]:
    for begin in range(0, len(tried), _BATCH):
        yield begin, tried[begin : begin + _BATCH]


def _measure(batch: Sequence[_Tried], pool: WarmPool, seed: int) -> None:
    """Winners in turns with their untuned programs, and untuned programs alone; takes the place of earlier times."""
    winners = [(t, t.schedule) for t in batch if t.schedule is not None]
    cases = [Case(t.stored.mod, schedule.mod) for t, schedule in winners]
    for (t, _), compared in zip(winners, compare_many(pool, cases, seed=seed, repeats=_REPEATS), strict=True):
        t.take(compared)
    for t, times in _measure_untuned([t for t in batch if t.is_untuned], pool):
        if isinstance(times, JobError):
            t.excused = f"the untuned program cannot be measured: {times.message}"
        else:
            t.times = dataclasses.replace(t.times, untuned_now_s=times)


def _measure_untuned(batch: Sequence[_Tried], pool: WarmPool) -> Iterator[tuple[_Tried, tuple[float, ...] | JobError]]:
    return zip(batch, measure_modules(pool, [t.stored.mod for t in batch]), strict=True)


def _blame(again: Sequence[_Tried], pool: WarmPool) -> None:
    """Excuse records that were not compared because their untuned programs do not run here."""
    for t, times in _measure_untuned([t for t in again if t.broken], pool):
        if isinstance(times, JobError):
            t.excused = f"its untuned program cannot be measured: {times.message}"


def mark(registry: Registry, found: Rechecked, spec: NetworkSpec) -> tuple[str, ...]:
    """Tell the registry; a note says what it did not take. Each kind of finding is one transaction."""
    chosen = {"network": [spec.name, spec.version]}
    try:
        for record_id, reason in found.failed.items():
            registry.quarantine([record_id], reason)
        if found.drifted:
            registry.mark_drift(found.drifted, "measured again, twice, and slower than stored", selection=chosen)
        if found.recovered:
            registry.clear_drift(found.recovered, "measured again, and as fast as stored", selection=chosen)
    except RegistryError as error:
        return (f"the registry was not told of everything that was found: {error.message}",)
    return ()


def check_before_reuse(
    prepared: Prepared, registry: Registry, pool: WarmPool, n: int, *, spec: NetworkSpec, seed: int, say: Say
) -> tuple[Rechecked, list[str]]:
    """Measure n of the records that a run is about to reuse again, and tell the registry; with notes for people."""
    modules = {item.task.workload.key: item.mod for item in prepared.lowered.tasks}
    served = [(p.task, p.match.record) for p in prepared.planned]
    known = [Stored(task, modules[task.workload.key], record) for task, record in served if record is not None]
    found = recheck(choose(known, n, seed), pool, seed=seed, say=say)
    counts = Counter(str(check.verdict) for check in found.checks)
    said = ", ".join(f"{number} {verdict}" for verdict, number in counts.items()) or "nothing is known to measure"
    return found, [f"canary: {said}", *found.notes, *mark(registry, found, spec)]


def distrust(prepared: Prepared, drifted: Mapping[str, str]) -> Prepared:
    """The same network with the given records as priors only, where a registry that is only read still serves them.

    Args:
        drifted: How records drifted, by id.
    """
    served = [p.match for p in prepared.planned]
    if not any(m.record is not None and m.record.id in drifted for m in served):
        return prepared
    matches = [_as_stale(m, drifted) for m in served]
    planner = prepared.planner
    key = environment_key(planner.environment)
    planned = plan_tasks(prepared.tasks, matches, planner.depths, planner.clusters, key)
    exact = {p.task.workload.key for p in planned if p.match.record is not None or p.finished is not None}
    reused = {k: schedule for k, schedule in prepared.reused.items() if k in exact}
    return dataclasses.replace(prepared, planned=tuple(planned), reused=reused)


def _as_stale(match: Match, drifted: Mapping[str, str]) -> Match:
    record = match.record
    if record is None or record.id not in drifted:
        return match
    prior = Prior(record, match.workload, 0.0, Grade.STALE)
    return Match(match.workload, Grade.STALE, None, (prior,), f"drifted: {drifted[record.id]}")
