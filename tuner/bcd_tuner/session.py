"""The run: plan -> tune -> check -> publish -> report."""

from __future__ import annotations

import dataclasses
import functools
import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from bcd_registry.errors import BcdError, ConfigError, CostModelError, RegistryError, StoreUnavailable
from bcd_registry.frozen import FrozenLookup
from bcd_registry.lock import Lock
from bcd_registry.model import (
    CostModelSnapshot,
    Environment,
    Json,
    NetworkSpec,
    RunSummary,
    canonical_json,
)
from bcd_registry.registry import Registry
from bcd_registry.spool import Outbox, Results

from .canary import check_before_reuse, distrust
from .check import Checked, check_winners
from .clustering import Clustering
from .compile import NetworkCheck, check_network, compile_both
from .cost_model import FEATURE_WIDTH
from .environment import current_environment
from .latency_model import LatencyModel
from .light_import import import_intrinsics
from .networks import ImportedNetwork, make_inputs, onnxruntime_call
from .pictures import CURVE_PNG, save_pictures
from .plan import PlannedTask, expectation, seconds_a_trial
from .prepare import Lookups, Prepared, prepare, read_and_lower, saved_trials, version_of
from .report import Plan, ProgressEvent, ProgressSink, Saving, TuneReport
from .rounds import Step, Surroundings, Tuning
from .scheduling import TaskRun
from .search import Candidate, SearchPolicy
from .sharing import ClusterLeases
from .summary import Clock, build_report
from .targets import canonical_target, resolve_target, usable_cores, use_threads
from .tasks import LoweredNetwork
from .tracking import Tracker
from .workers import Counters, WarmPool


@dataclass(frozen=True, slots=True)
class TuneRequest:
    """What the user asked for.

    Attributes:
        spec: The network, its target and its budgets.
        seed: Seeds every draw of the run.
        fresh: Ask the registry for nothing; what is found is still published.
        clustering: What makes tasks of the run siblings.
        policy: How a task is searched; None for the default.
        pretrain: Let the cost model learn from other clusters, of this run and of the registry.
        fine_tune: Let it add trees for each cluster.
        keep_layout: Leave convolutions in the layout of the model: for comparison.
        canary: Records to measure again before they are reused.
        lock: Use exactly the records that it names, and do no trial.
    """

    spec: NetworkSpec
    seed: int = 0
    fresh: bool = False
    clustering: Clustering = Clustering.SIGNATURE
    policy: SearchPolicy | None = None
    pretrain: bool = True
    fine_tune: bool = True
    keep_layout: bool = False
    canary: int = 0
    lock: Lock | None = None

    def __post_init__(self) -> None:
        """Refuse numbers that make no sense, and a lock that nothing is to be asked of."""
        if self.seed < 0:
            raise ConfigError(f"the seed is {self.seed}", hint="give 0 or more")
        if self.canary < 0:
            raise ConfigError(f"{self.canary} records cannot be measured again", hint="give 0 or more")
        if self.lock is not None and self.fresh:
            raise ConfigError("--fresh and --frozen contradict each other", hint="leave one of them out")


def plan(request: TuneRequest, registry: Registry, *, progress: ProgressSink) -> Plan:
    """What a tune would reuse, diffuse and search, and what it would cost. Nothing is built or measured.

    Raises:
        ConfigError: The target or a shape is wrong.
        NetworkError: The network cannot be read.
        RegistryError: The registry cannot be used.
    """
    return look_up(request, registry, progress=progress)[1]


def look_up(request: TuneRequest, registry: Registry, *, progress: ProgressSink) -> tuple[Prepared, Plan]:
    """The network's tasks with what the registry knows of each, and what `plan` says of them.

    Raises:
        BcdError: See `plan`.
    """
    spec = request.spec
    target = resolve_target(spec.target)
    import_intrinsics(target.kind.name)
    network, lowered = read_and_lower(
        spec, target, lambda phase, message: progress(ProgressEvent(phase, message)), keep_layout=request.keep_layout
    )
    environment = current_environment(target, WarmPool.default_measurement())
    prepared = prepare(
        network, lowered, registry, environment, trials=spec.trials, fresh=request.fresh, clustering=request.clustering
    )
    runs = registry.list_runs()
    return prepared, expectation(spec.name, spec.version, canonical_json(canonical_target(target)), prepared.planned, runs)


def tune(
    request: TuneRequest,
    registry: Registry,
    *,
    progress: ProgressSink,
    tracker: Tracker | None = None,
    output_dir: Path | None = None,
    open_outbox: Callable[[str], Outbox] | None = None,
) -> TuneReport:
    """Tune a network from what the registry knows, check the result, publish it and report.

    A KeyboardInterrupt that `progress` raises during the tuning ends it cleanly: what was measured stays as priors, and the
    report says `interrupted`. A signal handler must not raise by itself: that crashes inside the compiler's C++, so it should
    leave a mark for `progress` to find.

    Args:
        progress: Called from this thread with each step.
        tracker: Where the run is logged; its failures are notes, not errors.
        output_dir: Where the pictures go; None draws none.
        open_outbox: Makes the way of what the run of an id finds; by default it goes to the registry alone.

    Raises:
        ConfigError: The target or a shape is wrong.
        NetworkError: The network cannot be read.
        RegistryError: The registry cannot be used.
        MeasureError: No worker can start, or the network does not compile.
    """
    with tracker or nullcontext():
        run = _Run(request, registry, progress, open_outbox)
        report = run.execute()
        return run.finish(report, tracker, output_dir)


class _Run:
    """One tune, from its request to its report. Used once, by one thread."""

    def __init__(
        self, request: TuneRequest, registry: Registry, progress: ProgressSink, open_outbox: Callable[[str], Outbox] | None
    ) -> None:
        self._request, self._spec, self._registry, self._progress = request, request.spec, registry, progress
        self._clock = Clock()
        self._id = uuid.uuid4().hex
        self._outbox = open_outbox(self._id) if open_outbox else Outbox(registry, None)
        self._notes: list[str] = []
        self._environment_key = ""
        self._cost_model_id: str | None = None
        self._weights: Mapping[str, int] = {}
        self._environment: Mapping[str, Json] = {}
        self._target = resolve_target(request.spec.target)
        self._target_text = canonical_json(canonical_target(self._target))
        self._cores = int(self._target.attrs.get("num-cores", usable_cores()))
        self._threads = use_threads(self._cores)
        if self._threads != self._cores:
            self._notes.append(f"end to end runs on {self._threads} threads, not {self._cores}: this process used TVM before")

    def execute(self) -> TuneReport:
        """Everything up to the report; the worker processes live no longer than this call."""
        with WarmPool(self._target) as pool, ThreadPoolExecutor(self._cores) as executor:
            import_intrinsics(self._target.kind.name)
            network, lowered = read_and_lower(self._spec, self._target, self._say, keep_layout=self._request.keep_layout)
            self._clock.mark("extracted")
            environment = current_environment(self._target, pool.measurement)
            self._say("lookup", f"looking up {len(lowered.tasks)} tasks")
            prepared = self._prepare(network, lowered, environment)
            if self._request.canary:
                prepared = self._check_before_reuse(prepared, pool, lambda: self._prepare(network, lowered, environment))
            model = self._open_model()
            around = self._surroundings(pool, executor, model, self._register(prepared, environment), prepared)
            self._weights = {task.workload.key: task.weight for task in prepared.tasks}
            runs = [TaskRun(p, prepared.module(p.task.workload.key)) for p in prepared.planned]
            for task in runs:
                _take_known(task, prepared)
            try:
                return self._tune(prepared, runs, Tuning(runs, around, self._request.policy), pool, model)
            finally:
                if around.leases is not None:
                    around.leases.close()

    def _prepare(self, network: ImportedNetwork, lowered: LoweredNetwork, environment: Environment) -> Prepared:
        """Look up and plan; a registry that stops to answer is reported, and asked for nothing."""
        lock = self._request.lock
        version = version_of(network, [item.task for item in lowered.tasks])
        lookups: Lookups = FrozenLookup(self._registry, lock, version) if lock else self._registry
        look_up = functools.partial(
            prepare,
            network,
            lowered,
            lookups,
            environment,
            trials=0 if lock else self._spec.trials,
            clustering=self._request.clustering,
        )
        try:
            return look_up(fresh=self._request.fresh)
        except StoreUnavailable as error:
            if lock:
                raise
            self._notes.append(f"the registry was not asked: {error.message}")
            return look_up(fresh=True)

    def _check_before_reuse(self, prepared: Prepared, pool: WarmPool, look_up: Callable[[], Prepared]) -> Prepared:
        """Measure some of what would be reused again; what no longer holds is looked up once more, and is a prior at most."""
        found, notes = check_before_reuse(
            prepared,
            self._registry,
            pool,
            self._request.canary,
            spec=self._spec,
            seed=self._request.seed,
            say=functools.partial(self._say, "check"),
        )
        self._notes += notes
        pool.counters = Counters()  # what it took is no tuning
        return distrust(look_up(), found.drifted) if found.drifted or found.failed else prepared

    def _refresh(self, prepared: Prepared, runs: Sequence[TaskRun]) -> None:
        """Plan the tasks of one cluster again when another run has searched one of them since they were looked up."""
        waiting = [run for run in runs if run.search is None and run.left]
        if self._request.fresh or not waiting:
            return
        tasks = [run.planned.task for run in waiting]
        try:
            planned = prepared.planner.plan(tasks, prepared.reused)
        except RegistryError as error:
            self._notes.append(f"what other tuners found is not used: {error.message}")
            return
        known = {id_ for run in waiting for id_ in _own_records(run.planned)}
        if any(not _own_records(p, other_than=self._id) <= known for p in planned):
            for run, again in zip(waiting, planned, strict=True):
                run.plan_again(again)
                _take_known(run, prepared)

    def finish(self, report: TuneReport, tracker: Tracker | None, output_dir: Path | None) -> TuneReport:
        """Keep the run, draw the pictures and log it; the report with what came of that."""
        notes = list(report.notes)
        pictures: Mapping[str, Path] = {}
        if output_dir is not None:
            try:
                pictures = self._draw(report, output_dir)
            except OSError as error:
                notes.append(f"the pictures were not drawn: {error.strerror or error}")
        tracked = tracker.log(report, params=self._params(), pictures=pictures) if tracker else None
        if tracked and tracked.note:
            notes.append(tracked.note)
        report = dataclasses.replace(
            report,
            notes=tuple(notes),
            mlflow_run_id=tracked.run_id if tracked else None,
            mlflow_experiment_id=tracked.experiment_id if tracked else None,
            curve_png=str(pictures[CURVE_PNG]) if CURVE_PNG in pictures else None,
            wall_s=self._clock.elapsed_s,
        )
        self._keep_run(report)
        note = self._outbox.settle()
        return dataclasses.replace(report, notes=(*report.notes, note)) if note else report

    def _tune(self, prepared: Prepared, runs: list[TaskRun], tuning: Tuning, pool: WarmPool, model: LatencyModel) -> TuneReport:
        cost = seconds_a_trial(self._earlier_runs())
        interrupted = False
        try:
            tuning.run(self._observe, self._wait)
        except KeyboardInterrupt:
            interrupted = True
        time_split = tuning.time_split()
        self._notes += tuning.notes
        if tuning.cut_short:
            self._notes.append("the time budget ended the search: unfinished tasks are kept as priors and go on next time")
        outcome = None
        if interrupted:
            self._notes.append("interrupted: what was measured is kept, and the same command goes on from there")
        else:
            outcome = self._check(prepared, runs, tuning, pool)
        if tuning.trials:
            self._publish_model(model)
        return build_report(
            run_id=self._id,
            request_seed=self._request.seed,
            spec=self._spec,
            target=self._target_text,
            threads=self._threads,
            runs=runs,
            tuning=tuning,
            time_split=time_split,
            outcome=outcome,
            saving=_saving(runs, *cost),
            clock=self._clock,
            interrupted=interrupted,
            notes=self._notes,
            model=model,
            environment_key=self._environment_key,
            cpu_model=str(self._environment.get("cpu_model") or ""),
        )

    def _earlier_runs(self) -> list[RunSummary]:
        try:
            return self._registry.list_runs()
        except StoreUnavailable:
            return []

    def _check(self, prepared: Prepared, runs: list[TaskRun], tuning: Tuning, pool: WarmPool) -> NetworkCheck:
        """Check the winners one by one, then the network; publish when both pass."""
        self._say("check", "checking the winners against the untuned programs")
        checked = check_winners(runs, pool, tuning.record, tuning.untuned_record, seed=self._request.seed)
        exact = {run.key for run in runs if run.planned.match.record is not None}
        schedules = {**{key: s for key, s in prepared.reused.items() if key in exact}, **checked.schedules}
        with pool.alone():
            self._say("compile", "compiling the network, untuned and tuned")
            untuned, tuned = compile_both(prepared.lowered, schedules)
            self._say("verify", "comparing outputs and timing end to end")
            inputs = make_inputs(prepared.network, self._request.seed)
            outcome = check_network(untuned, tuned, inputs, onnxruntime_call(prepared.network, inputs, self._threads))
        if outcome.imported_error:
            self._notes.append(f"the imported network computes something else than onnxruntime: {outcome.imported_error}")
        self._publish(checked, outcome)
        return outcome

    def _publish(self, checked: Checked, outcome: NetworkCheck) -> None:
        wrong = Results(
            kept=tuple(record for record, _ in checked.wrong),
            quarantined={record.id: reason for record, reason in checked.wrong},
        )
        with self._registry_trouble_is_a_note():
            self._outbox.give(wrong)
        if not outcome.equal:
            self._notes.append(f"nothing was published: the tuned network's output differs, {outcome.worst}")
            return
        if outcome.slower:
            self._notes.append("nothing was published: the tuned network is slower than the untuned one, which should be used")
            return
        with self._registry_trouble_is_a_note():
            self._outbox.give(Results(published=tuple(checked.records)))

    def _register(self, prepared: Prepared, environment: Environment) -> str:
        """Store what records will refer to, and return the environment's key."""
        version = version_of(prepared.network, prepared.tasks)
        self._environment = environment.fields
        self._environment_key = self._outbox.register(version, environment)
        return self._environment_key

    def _surroundings(
        self, pool: WarmPool, executor: ThreadPoolExecutor, model: LatencyModel, environment_key: str, prepared: Prepared
    ) -> Surroundings:
        budget = self._spec.time_budget_s
        return Surroundings(
            target=self._target,
            outbox=self._outbox,
            pool=pool,
            model=model,
            executor=executor,
            environment_key=environment_key,
            run_id=self._id,
            seed=self._request.seed,
            threads=self._cores,
            stop_at=time.monotonic() + budget if budget is not None else float("inf"),
            cost_model_id=self._cost_model_id,
            leases=None if self._request.fresh else ClusterLeases(self._registry, self._id, environment_key),
            refresh=functools.partial(self._refresh, prepared),
        )

    def _open_model(self) -> LatencyModel:
        """The registry's newest cost model for the target, or an empty one and a note that says why."""
        model = LatencyModel(seed=self._request.seed, across_clusters=self._request.pretrain, fine_tune=self._request.fine_tune)
        snapshot: CostModelSnapshot | None = None
        if self._request.pretrain and not self._request.fresh:
            try:
                snapshot = self._registry.latest_cost_model(self._target_text)
                if snapshot is not None:
                    model.pretrain(snapshot, FEATURE_WIDTH)
                    self._cost_model_id = snapshot.id
            except (CostModelError, RegistryError) as error:
                self._notes.append(f"the stored cost model is not used: {error.message}")
        return model

    def _publish_model(self, model: LatencyModel) -> None:
        with self._registry_trouble_is_a_note():
            snapshot = model.snapshot(self._target_text, FEATURE_WIDTH)
            if snapshot is not None:
                self._outbox.give(Results(cost_model=snapshot))

    @contextmanager
    def _registry_trouble_is_a_note(self) -> Iterator[None]:
        try:
            yield
        except BcdError as error:
            self._notes.append(f"the registry took nothing: {error.message}")

    def _observe(self, step: Step) -> None:
        self._progress(
            ProgressEvent(
                "tune",
                task=f"{step.task.planned.task.workload.op} ({step.task.planned.match.grade})",
                estimated_ms=self._estimate_ms(step),
                best_ms=None if step.task.best_s is None else step.task.best_s * 1e3,
                trials=step.trials,
                trials_planned=step.trials + step.trials_left,
                elapsed_s=self._clock.elapsed_s,
                left_s=step.left_s,
            )
        )

    def _wait(self, n_tasks: int) -> None:
        self._say("wait", f"{n_tasks} tasks are being tuned by another run")

    def _estimate_ms(self, step: Step) -> float | None:
        """The weighted sum of the latencies in use; None until each was measured or comes from a record."""
        seconds = [weight * latency if (latency := step.best_s[key]) else None for key, weight in self._weights.items()]
        known = [s for s in seconds if s is not None]
        return sum(known) * 1e3 if len(known) == len(seconds) else None

    def _say(self, phase: str, message: str) -> None:
        self._progress(ProgressEvent(phase, message, elapsed_s=self._clock.elapsed_s))

    def _params(self) -> dict[str, object]:
        spec = self._spec
        return {
            "source": spec.source,
            "trials_a_task": spec.trials,
            "time_budget_s": spec.time_budget_s,
            "fresh": self._request.fresh,
        }

    def _draw(self, report: TuneReport, output_dir: Path) -> Mapping[str, Path]:
        name = "-".join(part for part in (report.network, report.version, report.run_id[:8]) if part)
        return save_pictures(report, output_dir, name)

    def _keep_run(self, report: TuneReport) -> None:
        run = RunSummary(
            id=report.run_id,
            network=report.network,
            version=report.version,
            environment_key=self._environment_key,
            seed=report.seed,
            trials=report.trials,
            tuning_s=report.time_s.total,
            finished=not (report.interrupted or report.cut_short),
            created_at=time.time(),
            report=json.loads(json.dumps(report.as_json())),
        )
        with self._registry_trouble_is_a_note():
            self._outbox.give(Results(run=run))


def _take_known(run: TaskRun, prepared: Prepared) -> None:
    """What a task needs no search for: a schedule to reuse, or one that another run found and this one checks."""
    run.record = run.planned.match.record
    run.untuned_s = run.record.untuned_s if run.record else None
    found, schedule = run.planned.finished, prepared.reused.get(run.key)
    if found is not None and schedule is not None:
        run.adopted = Candidate(
            schedule, found.sketch, found.decisions, 0, 0.0, found.id, latency_s=found.median_s, run_times_s=found.run_times_s
        )
        run.notes.append(f"found by run {found.run_id[:8]}, checked here")


def _own_records(planned: PlannedTask, other_than: str = "") -> set[str]:
    """Ids of the records of the task's own workload, leaving out those of one run."""
    found = [
        planned.match.record,
        *(p.record for p in planned.match.priors if p.record.workload_key == planned.task.workload.key),
    ]
    return {record.id for record in found if record is not None and record.run_id != other_than}


def _saving(runs: Sequence[TaskRun], cost_s: float | None, basis: str) -> Saving:
    """What a run with an empty registry would have granted to the tasks that are done, at what earlier runs cost a trial."""
    saved = saved_trials([run.planned for run in runs])
    trials = sum(n for run, n in zip(runs, saved, strict=True) if run.finished)
    return Saving(trials, None if cost_s is None else cost_s * trials, basis)
