"""What other people measured, taken into a registry: TVM's `JSONDatabase` folders, and bundles."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import tvm
from tvm.ir import IRModule
from tvm.target import Target

from bcd_registry.bundle import Bundle
from bcd_registry.errors import CorruptBlob, NotFound
from bcd_registry.exchange import TakenIn, known_ids, take_in
from bcd_registry.model import Environment, Json, NetworkSpec, RecordState, TuningRecord
from bcd_registry.registry import Registry
from bcd_registry.staleness import environment_key

from .environment import current_environment
from .interchange import BadLine, FoundDatabase, FoundSchedule, Reader, open_reader, read_database
from .light_import import import_intrinsics
from .plan import UNTUNED_SKETCH
from .prepare import read_and_lower
from .remeasuring import Claim, Remeasured, remeasure
from .report import ProgressEvent, ProgressSink
from .strange_programs import replay_on_module
from .subgraph import contradiction
from .targets import resolve_target
from .workers import WarmPool

IMPORTED = {"how": "imported"}
"""How latencies of a `JSONDatabase` were measured: nobody knows. So they never equal what is measured here."""

RUN_ID = "imported"
"""The run of imported records: the same schedule in the same environment is one record, whatever file it came in."""

SHOWN_LINES = 10
"""Bad lines that are shown; all are counted."""

_Say = Callable[[str, str], None]
_Step = Callable[[], None]


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What an import did.

    Attributes:
        taken: What the registry holds now that it did not.
        n_records: Records in the source.
        n_failed: Those of candidates that failed when they were measured.
        n_workloads: Programs in the source that can be used.
        bad: What cannot be used, in the order of the source.
        remeasured: Whether schedules were built and measured here.
        n_slower: Schedules that were slower here than the untuned program.
        n_wrong: Schedules that computed something else here; they are quarantined.
    """

    taken: TakenIn
    n_records: int
    n_failed: int = 0
    n_workloads: int = 0
    bad: tuple[BadLine, ...] = ()
    remeasured: bool = False
    n_slower: int = 0
    n_wrong: int = 0

    def as_json(self) -> dict[str, Json]:
        """Plain JSON; only the first bad lines are in it."""
        return {
            "changed": self.taken.changed,
            "records": self.n_records,
            "failed": self.n_failed,
            "workloads": self.n_workloads,
            "published": self.taken.n_published,
            "priors": self.taken.n_priors,
            "known": self.taken.n_known,
            "untuned": self.taken.n_refused,
            "remeasured": self.remeasured,
            "slower": self.n_slower,
            "wrong": self.n_wrong,
            "new_network": self.taken.new_network,
            "n_bad": len(self.bad),
            "bad": [dataclasses.asdict(line) for line in self.bad[:SHOWN_LINES]],
            "notes": list(self.taken.notes),
        }


def import_database(
    folder: Path, registry: Registry, target: Target, progress: ProgressSink, *, measure: bool = False
) -> ImportReport:
    """Take in a `JSONDatabase` folder: of the schedules that replay, the fastest of each workload, as priors.

    Nothing in the folder is believed: keys are made here, and traces are replayed on canonical programs, in a process that may
    crash. Latencies are those of the file, under an environment that says so.

    Args:
        target: What the priors are for.
        measure: Build the fastest, check them against the untuned programs, and publish what passes with the times of here.

    Raises:
        ConfigError: It is no such folder, or cannot be read.
        CorruptBlob: No record of it can be used.
        MeasureError: Too many lines end the process that reads them, or no worker can start.
        RegistryError: The registry refuses the records.
    """
    say, step = _sinks(progress)
    say("import", f"reading {folder}")
    with open_reader(target) as reader:
        database = read_database(folder, reader, step)
    if database.bad and not any(found.schedules for found in database.workloads):
        raise CorruptBlob(f"no record of {folder} can be used: {database.bad[0].describe()}", hint="nothing was imported")
    environment = current_environment(target, IMPORTED)
    report = ImportReport(
        _keep(registry, database, environment),
        n_records=database.n_records,
        n_failed=database.n_failed,
        n_workloads=len(database.workloads),
        bad=tuple(database.bad),
    )
    return (
        _measured(report, registry, target, _claims_of(database, environment_key(environment)), say, step)
        if measure
        else report
    )


def import_bundle(
    bundle: Bundle, registry: Registry, progress: ProgressSink, *, trust: bool = False, spec: NetworkSpec | None = None
) -> ImportReport:
    """Take in a bundle that was read and verified.

    Args:
        trust: Take its published records as results, unmeasured.
        spec: The network itself, on whose programs the schedules are checked and measured here; what passes is published.

    Raises:
        ConfigError: The target or a shape of `spec` is wrong.
        CorruptBlob: A workload does not follow from its description; then nothing is stored.
        NetworkError: The network cannot be read.
        MeasureError: No worker can start.
        RegistryError: The registry refuses it.
    """
    for workload in bundle.workloads:
        if wrong := contradiction(workload):
            raise CorruptBlob(
                f"workload {workload.key[:12]} of the bundle cannot be used: {wrong}", hint="nothing was imported"
            )
    say, step = _sinks(progress)
    if spec is None:
        return _taken(bundle, registry, trust=trust)
    target = resolve_target(spec.target)
    import_intrinsics(target.kind.name)
    _, lowered = read_and_lower(spec, target, say)
    modules = {item.task.workload.key: item.mod for item in lowered.tasks}
    say("import", "replaying its schedules")
    with open_reader(target) as reader:
        claims, bad = _replayed(bundle.records, modules, reader, step)
    report = dataclasses.replace(_taken(bundle, registry, trust=trust), bad=tuple(bad))
    return _measured(report, registry, target, claims, say, step)


def _taken(bundle: Bundle, registry: Registry, *, trust: bool) -> ImportReport:
    taken = take_in(registry, bundle, trust=trust)
    return ImportReport(taken, n_records=len(bundle.records), n_workloads=len(bundle.workloads))


def _sinks(progress: ProgressSink) -> tuple[_Say, _Step]:
    """For a phase with a line for people, and for a step of the phase."""
    began, phases = time.monotonic(), ["import"]

    def say(phase: str, message: str) -> None:
        phases.append(phase)
        progress(ProgressEvent(phase, message, elapsed_s=time.monotonic() - began))

    def step() -> None:
        progress(ProgressEvent(phases[-1], elapsed_s=time.monotonic() - began))

    return say, step


def _keep(registry: Registry, database: FoundDatabase, environment: Environment) -> TakenIn:
    """Store the schedules as priors; those that are there already stay as they are."""
    workloads = [found.workload for found in database.workloads]
    key = environment_key(environment)
    found = [_prior(item.workload.key, key, schedule) for item in database.workloads for schedule in item.schedules]
    known = known_ids(registry, workloads)
    new = [record for record in found if record.id not in known]
    if new:
        registry.put_environment(environment)
        registry.put_workloads(workloads)
        registry.keep(new)
    return TakenIn(n_priors=len(new), n_known=len(found) - len(new))


def _prior(workload_key: str, environment: str, schedule: FoundSchedule) -> TuningRecord:
    """A record that claims no search, so that nobody searches less for it."""
    return TuningRecord(
        workload_key=workload_key,
        environment_key=environment,
        trace=schedule.replayed.trace,
        sketch=schedule.replayed.sketch,
        decisions=schedule.replayed.decisions,
        run_times_s=schedule.run_times_s,
        trials=0,
        depth=0,
        state=RecordState.MEASURED,
        run_id=RUN_ID,
    )


def _claims_of(database: FoundDatabase, environment: str) -> list[Claim]:
    """The schedules with their programs. A search came to its end after the trials that the folder has of a workload."""
    claims = []
    for found in database.workloads:
        mod = tvm.ir.load_json(found.loaded.module)
        for schedule in found.schedules:
            prior = _prior(found.workload.key, environment, schedule)
            claims.append(Claim(mod, dataclasses.replace(prior, trials=found.n_trials, depth=found.n_trials), prior.id))
    return claims


def _replayed(
    records: Iterable[TuningRecord], modules: Mapping[str, IRModule], reader: Reader, step: _Step
) -> tuple[list[Claim], list[BadLine]]:
    """Published records of a bundle whose traces replay to what they say, in a process that may crash."""
    claims, bad = [], []
    for record in records:
        mod = modules.get(record.workload_key)
        if mod is None or record.sketch == UNTUNED_SKETCH or record.state is not RecordState.PUBLISHED:
            continue
        step()
        try:
            replayed = reader.call(replay_on_module, tvm.ir.save_json(mod), record.trace)
            if (replayed.sketch, replayed.decisions) != (record.sketch, record.decisions):
                raise CorruptBlob("its decisions are not those of its trace")
            claims.append(Claim(mod, dataclasses.replace(record, trace=replayed.trace, created_at=0.0), record.id))
        except CorruptBlob as error:
            bad.append(BadLine(f"record {record.id[:12]}", 0, error.message))
    return claims, bad


def _measured(
    report: ImportReport, registry: Registry, target: Target, claims: Sequence[Claim], say: _Say, step: _Step
) -> ImportReport:
    """Measure the claims in the environment of this machine, and publish what holds."""
    say("check", f"measuring the fastest of {len(claims)} schedules against the untuned programs")
    import_intrinsics(target.kind.name)
    with WarmPool(target) as pool:
        environment = current_environment(target, pool.measurement)
        key = environment_key(environment)
        here = [dataclasses.replace(c, record=dataclasses.replace(c.record, environment_key=key)) for c in claims]
        found = remeasure(here, pool, step)
    registry.put_environment(environment)
    if found.checked:
        registry.publish(found.checked)
    _quarantine(registry, found)
    return dataclasses.replace(
        report,
        taken=dataclasses.replace(report.taken, n_published=report.taken.n_published + len(found.checked)),
        remeasured=True,
        n_slower=found.n_slower,
        n_wrong=len(found.wrong),
    )


def _quarantine(registry: Registry, found: Remeasured) -> None:
    """What computes something else is never used again, not even as a prior."""
    for claim, reason in found.wrong:
        registry.keep([claim.record.with_state(RecordState.MEASURED)])
        for record_id in {claim.record.id, claim.prior}:
            with contextlib.suppress(NotFound):
                registry.quarantine([record_id], reason)
