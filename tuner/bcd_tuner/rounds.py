"""The tuning of one run: rounds of candidates, task by task, built and measured, kept in the registry as they come."""

from __future__ import annotations

import dataclasses
import logging
import math
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm.s_tir.meta_schedule import TuneContext
from tvm.target import Target

from bcd_registry.errors import BcdError, Conflict
from bcd_registry.model import Decision, Grade, Json, Lease, Prior, RecordState, Refutation, TuningRecord, Workload
from bcd_registry.spool import Outbox, Results

from .cost_model import candidate_features
from .latency_model import Floats, LatencyModel
from .plan import UNTUNED_SKETCH
from .replay import trace_as_json
from .report import CurvePoint, TimeSplit
from .scheduling import Schedule, TaskRun
from .search import Candidate, SearchPolicy, TaskSearch
from .sharing import ClusterLeases
from .worker_process import JobError
from .workers import BuildJob, RunJob, WarmPool, args_of

_LOG = logging.getLogger(__name__)

KEPT_A_ROUND = 3
"""Records that each round adds to the registry: its best."""

_FROM_LEADER = 4
_FROM_MATE = 2
_N_MATES = 2
_CUTOFF = 6.0
_SEED_BYTES = 12
_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Step:
    """One round as the run's observer sees it.

    Attributes:
        seconds: Seconds of tuning so far.
        trials: Trials so far.
        left_s: Expected seconds of the trials that are left; None when nobody can tell.
        best_s: Latency in use of every task after it, by workload key; None where nothing was measured.
    """

    task: TaskRun
    seconds: float
    trials: int
    trials_left: int
    left_s: float | None
    best_s: dict[str, float | None]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every round needs and nobody changes.

    Attributes:
        keep: Whether records go to the registry while the run goes on.
        stop_at: Value of `clock` after which no round begins; infinite without a time budget.
        cost_model_id: The stored snapshot that the cost model began with.
        leases: Keep runs at work at the same time apart; None works as if alone.
        refresh: Plans tasks of one cluster again that another run may have searched.
    """

    target: Target
    outbox: Outbox
    pool: WarmPool
    model: LatencyModel
    executor: Executor
    environment_key: str
    run_id: str
    seed: int
    threads: int
    stop_at: float
    cost_model_id: str | None = None
    leases: ClusterLeases | None = None
    refresh: Callable[[Sequence[TaskRun]], None] | None = None
    clock: Callable[[], float] = time.monotonic


class Tuning:
    """Owns the loop over the tasks of a run.

    Attributes:
        steps: Every round so far, for the curve.
        trials: Candidates measured so far, failures included.
        first_candidate_at: `clock` when the first candidate had been measured.
        notes: Warnings for people.
        cut_short: The time budget ended it.
    """

    def __init__(self, runs: Sequence[TaskRun], around: Surroundings, policy: SearchPolicy | None = None) -> None:
        self.steps: list[Step] = []
        self.trials = 0
        self.first_candidate_at: float | None = None
        self.notes: list[str] = []
        self.cut_short = False
        self._runs, self._around, self._policy = list(runs), around, policy
        self._schedule = Schedule(runs)
        self._began = around.clock()
        self._search_s = 0.0
        self._rows: dict[int, tuple[Any, Floats]] = {}  # with the candidate, so that no other can take its id
        self._by_key = {run.key: run for run in runs}
        self._kept: set[str] = set()

    def run(self, observe: Callable[[Step], None], waiting: Callable[[int], None] | None = None) -> None:
        """Round after round until nothing is granted any more or the time is up; what the callbacks raise ends it cleanly.

        Args:
            observe: Called after each round.
            waiting: Called now and then while other runs search all that is left, with the number of those tasks.
        """
        try:
            self._run(observe, waiting)
        finally:
            self._settle()
            if self._around.leases is not None and self._around.leases.note:
                self.notes.append(self._around.leases.note)

    def _run(self, observe: Callable[[Step], None], waiting: Callable[[int], None] | None) -> None:
        while (task := self._next_task(waiting)) is not None:
            began = self._around.clock()
            if self._affordable(task) < 1:
                self.cut_short = True
                return
            self._guarded_round(task)
            task.seconds += self._around.clock() - began
            step = self._step(task)
            self.steps.append(step)
            observe(step)

    def _next_task(self, waiting: Callable[[int], None] | None) -> TaskRun | None:
        """The next task that no other run searches; None at the end, or when the time is up."""
        while True:
            self._settle()
            task = self._schedule.next_task(self._may_search)
            left = sum(run.left > 0 for run in self._runs)
            if task is not None or not left:
                return task
            if self._around.clock() >= self._around.stop_at:
                self.cut_short = True
                return None
            if waiting is not None:
                waiting(left)
            time.sleep(_POLL_S)

    def _may_search(self, task: TaskRun) -> bool:
        """Whether the task's cluster is this run's; once it is, what another run did meanwhile is looked up."""
        leases, cluster = self._around.leases, task.planned.cluster
        if leases is None or leases.holds(cluster):
            return True
        if not leases.acquire(cluster):
            return False
        if self._around.refresh is not None:
            self._around.refresh([run for run in self._runs if run.planned.cluster == cluster])
        return task.left > 0

    def _settle(self) -> None:
        """Tell the registry which searches came to their end, and give back the leases of clusters where all did."""
        ended = [run for run in self._runs if run.finished and not run.settled]
        for run in ended:
            run.settled = True
            if run.search is not None and run.search.best is not None:
                best = self.record(run, run.search.best).with_state(RecordState.MEASURED, depth=run.planned.depth)
                self._keep_records(run, [best])
        if self._around.leases is not None:
            for cluster in {run.planned.cluster for run in ended}:
                if all(run.finished for run in self._runs if run.planned.cluster == cluster):
                    self._around.leases.release(cluster)

    def time_split(self) -> TimeSplit:
        """Where the seconds since the start went; the four parts add up to them."""
        total = self._around.clock() - self._began
        build, run = self._around.pool.counters.build_s, self._around.pool.counters.run_s
        return TimeSplit(search=self._search_s, build=build, run=run, other=max(0.0, total - self._search_s - build - run))

    def curve(self, untuned_s: Callable[[TaskRun], float]) -> list[CurvePoint]:
        """The tuning curve, once the untuned latency of every task is known.

        Args:
            untuned_s: Latency of a task before anything was measured for it in this run, seconds.
        """

        def point(seconds: float, trials: int, best_s: dict[str, float | None]) -> CurvePoint:
            total = sum(run.weight * min(best_s.get(run.key) or math.inf, untuned_s(run)) for run in self._runs)
            return CurvePoint(seconds, trials, total * 1e3)

        return [point(0.0, 0, {}), *(point(step.seconds, step.trials, step.best_s) for step in self.steps)]

    def _step(self, task: TaskRun) -> Step:
        seconds = self._around.clock() - self._began
        best_s = {run.key: run.best_s for run in self._runs}
        return Step(task, seconds, self.trials, self._schedule.trials_left, self._schedule.seconds_left, best_s)

    def _affordable(self, task: TaskRun) -> int:
        """Candidates of its next round that can be measured before the time is up, at the pace so far."""
        left_s = self._around.stop_at - self._around.clock()
        if left_s <= 0.0:
            return 0
        pace_s = self._schedule.pace_s(task)
        return task.next_round if pace_s is None or math.isinf(left_s) else min(task.next_round, int(left_s / pace_s))

    def _guarded_round(self, task: TaskRun) -> None:
        """A task that TVM cannot handle ends its own search, not the run."""
        try:
            self._round(task)
        except BcdError:
            raise
        except Exception as error:  # noqa: BLE001 -- TVM raises whatever its C++ does
            _LOG.debug("a round failed", exc_info=True)
            lines = str(error).strip().splitlines() or [""]
            task.notes.append(f"its search failed: {type(error).__name__}: {lines[-1]}"[:200])
            task.finished = True

    def _round(self, task: TaskRun) -> None:
        began = self._around.clock()
        search = self._prepare(task)
        wanted = self._affordable(task)
        candidates = search.next_round(wanted, lambda measure: self._score(task, measure))
        self._search_s += self._around.clock() - began
        if not candidates:
            task.finished = True
            return
        before = task.best_s
        self._measure(task, candidates)
        began = self._around.clock()
        search.tell(candidates, [c.latency_s if c.latency_s is not None else math.inf for c in candidates])
        features = self._features(task, [c.measure_candidate() for c in candidates])
        self._rows.clear()
        self._around.model.update(features, [c.latency_s or math.inf for c in candidates], task.key, task.planned.cluster)
        self._search_s += self._around.clock() - began
        task.trials += len(candidates)
        self.trials += len(candidates)
        task.exhausted = len(candidates) < wanted
        task.after_round(len(candidates), before)
        self._refute(task)
        self._keep(task, candidates)

    def _refute(self, task: TaskRun) -> None:
        """Tell the registry, once, which priors misled the task."""
        misled = task.search.misled if task.search else ()
        if not misled or task.refuted:
            return
        task.refuted = True
        given = {prior.record.id for prior in task.planned.priors}
        found = [self._refutation(task, m.prior, m.ratio) for m in misled if m.prior.record.id in given]
        self._give(Results(refutations=tuple(found)))

    def _refutation(self, task: TaskRun, prior: Prior, ratio: float) -> Refutation:
        return Refutation(
            record_id=prior.record.id,
            workload_key=task.key,
            cluster=task.planned.task.workload.cluster,
            distance=prior.distance,
            environment_key=self._around.environment_key,
            run_id=self._around.run_id,
            ratio=ratio,
        )

    def _prepare(self, task: TaskRun) -> TaskSearch:
        """The task's search, begun on its first round."""
        if task.search is not None:
            return task.search
        task.context = TuneContext(
            mod=task.mod,
            target=self._around.target,
            space_generator="post-order-apply",
            task_name=task.planned.task.name,
            rand_state=1 + self._task_seed(task) % (2**31 - 2),
            num_threads=self._around.threads,
        )
        spaces = task.context.generate_design_space()
        task.search = TaskSearch(
            task.mod,
            list(spaces),
            list(task.context.space_generator.postprocs),
            priors=sorted([*task.planned.priors, *self._priors_of_this_run(task)], key=lambda prior: prior.distance),
            rng=np.random.default_rng(self._task_seed(task)),
            policy=self._policy,
            executor=self._around.executor,
        )
        return task.search

    def _task_seed(self, task: TaskRun) -> int:
        """The run's seed and the workload, so that no task's search depends on the order of the others."""
        return int(task.key[:_SEED_BYTES], 16) ^ (self._around.seed << 4 * _SEED_BYTES)

    def _priors_of_this_run(self, task: TaskRun) -> list[Prior]:
        """The best that this run measured for the task's representative, and for the nearest tasks with its main block."""
        own, leader = task.planned.task.workload, self._by_key.get(task.planned.waits_for or "")
        begun = [run for run in self._runs if run is not task and run.search is not None and run.search.best is not None]
        mates = [run for run in begun if run is not leader and run.planned.task.workload.anchor == own.anchor]
        mates.sort(key=lambda run: _nearness(run.planned.task.workload, own))
        priors = self._best_of(leader, own, Grade.CLUSTER, _FROM_LEADER) if leader in begun else []
        for mate in mates[:_N_MATES]:
            priors += self._best_of(mate, own, Grade.ANCHOR, _FROM_MATE)
        return priors

    def _best_of(self, run: TaskRun, own: Workload, grade: Grade, n: int) -> list[Prior]:
        """The best measured candidates of another task of this run, to diffuse from; kept, so that lineage has no gap."""
        assert run.search is not None
        workload = run.planned.task.workload
        measured = (c for c in run.search.measured if c.latency_s is not None and math.isfinite(c.latency_s))
        records = [self.record(run, c) for c in sorted(measured, key=lambda c: c.latency_s or 0.0)[:n]]
        if unknown := [record for record in records if record.id not in self._kept]:
            self._keep_records(run, unknown)
        return [Prior(record, workload, _nearness(workload, own), grade) for record in records]

    def _score(self, task: TaskRun, measure: Sequence[Any]) -> Any:
        if not measure or len(self._around.model.samples) == 0:
            return None
        return self._around.model.predict(self._features(task, measure), task.planned.cluster)

    def _features(self, task: TaskRun, measures: Sequence[Any]) -> Floats:
        """Their features; those that were extracted in this round, to rank them, are not extracted again to learn from them."""
        missing = [measure for measure in measures if id(measure) not in self._rows]
        rows = candidate_features(task.context, missing)
        self._rows.update({id(measure): (measure, row) for measure, row in zip(missing, rows, strict=True)})
        return np.stack([self._rows[id(measure)][1] for measure in measures])

    def _measure(self, task: TaskRun, candidates: Sequence[Candidate]) -> None:
        """Build all, then run one after the other; each result tells how long the next may take."""
        pool, best_s = self._around.pool, task.best_s
        measures = [candidate.measure_candidate() for candidate in candidates]
        artifacts = pool.build([BuildJob(measure.sch.mod) for measure in measures], patient=False)
        for candidate, measure, artifact in zip(candidates, measures, artifacts, strict=True):
            candidate.latency_s = math.inf
            if isinstance(artifact, JobError):
                continue
            cutoff_s = _CUTOFF * best_s if best_s else None
            [times] = pool.run([RunJob(artifact, args_of(measure.args_info))], cutoff_s, best_s)
            if not isinstance(times, JobError):
                candidate.run_times_s, candidate.latency_s = times, statistics.median(times)
                best_s = min(best_s or math.inf, candidate.latency_s)
                self.first_candidate_at = self.first_candidate_at or self._around.clock()

    def _keep(self, task: TaskRun, candidates: Sequence[Candidate]) -> None:
        """Give the round's best to the registry as priors."""
        good = sorted((c for c in candidates if c.run_times_s), key=lambda c: c.latency_s or 0.0)[:KEPT_A_ROUND]
        self._keep_records(task, [self.record(task, c) for c in good])

    def _keep_records(self, task: TaskRun, records: Sequence[TuningRecord]) -> None:
        """Give records to the registry, unless another run took the task's cluster meanwhile."""
        leases, cluster = self._around.leases, task.planned.cluster
        fences = leases.fences(cluster) if leases else ()
        try:
            self._give(Results(kept=tuple(records)), fences)
            self._kept.update(record.id for record in records)
        except Conflict:
            assert leases is not None
            leases.lose(cluster)

    def _give(self, results: Results, fences: Sequence[Lease] = ()) -> None:
        """Write to the registry, or spool; what fails is reported once."""
        try:
            self._around.outbox.give(results, fences)
        except Conflict:
            raise
        except BcdError as error:
            if error.message not in self.notes:
                self.notes.append(error.message)

    def untuned_record(self, task: TaskRun) -> TuningRecord:
        """The record that says: searched, and the untuned program stays."""
        assert task.untuned_s is not None
        return self._fill(task, [], UNTUNED_SKETCH, (), (task.untuned_s,), None)

    def record(self, task: TaskRun, candidate: Candidate) -> TuningRecord:
        """The record of a measured candidate, as the registry keeps it."""
        trace = trace_as_json(candidate.schedule)
        found = self._fill(task, trace, candidate.sketch, candidate.decisions, candidate.run_times_s, candidate.parent_id)
        ranked_by = None if candidate is task.adopted else self._around.cost_model_id
        return dataclasses.replace(found, cost_model_id=ranked_by)

    def _fill(
        self,
        task: TaskRun,
        trace: Json,
        sketch: str,
        decisions: tuple[Decision, ...],
        run_times_s: tuple[float, ...],
        parent_id: str | None,
    ) -> TuningRecord:
        return TuningRecord(
            workload_key=task.key,
            environment_key=self._around.environment_key,
            trace=trace,
            sketch=sketch,
            decisions=decisions,
            run_times_s=run_times_s,
            trials=task.planned.spent + task.trials,
            depth=0,
            state=RecordState.MEASURED,
            run_id=self._around.run_id,
            parent_id=parent_id,
            untuned_s=task.untuned_s,
            created_at=time.time(),
        )


def _nearness(workload: Workload, own: Workload) -> float:
    """Distance between whole workloads, or between main blocks where the rest differs."""
    return min(workload.distance(own), workload.anchor_distance(own))
