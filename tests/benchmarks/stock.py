"""Modes (a) and (b): TVM's own evolutionary search, its cost model and its gradient scheduler.

(a) is `tune_relax` with everything at its default. (b) has our warm workers and our measurement: a fair baseline, since what it
loses to is the search then and not the start of processes.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from typing import Any

from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule import TuneContext
from tvm.s_tir.meta_schedule.cost_model import XGBModel
from tvm.s_tir.meta_schedule.measure_callback import MeasureCallback, PyMeasureCallback
from tvm.s_tir.meta_schedule.relax_integration import tune_relax
from tvm.s_tir.meta_schedule.runner import PyRunner, PyRunnerFuture, RunnerFuture, RunnerInput, RunnerResult
from tvm.s_tir.meta_schedule.search_strategy import EvolutionarySearch
from tvm.s_tir.meta_schedule.task_scheduler import GradientBased
from tvm.s_tir.meta_schedule.tune import tune_tasks
from tvm.s_tir.meta_schedule.utils import fork_seed
from tvm.target import Target

from bcd_tuner.light_import import import_intrinsics
from bcd_tuner.networks import ImportedNetwork
from bcd_tuner.plan import depths_of
from bcd_tuner.prepare import read_and_lower
from bcd_tuner.rounds import _CUTOFF
from bcd_tuner.search import latency_of
from bcd_tuner.subgraph import workload_of
from bcd_tuner.targets import resolve_target, usable_cores
from bcd_tuner.tasks import LoweredNetwork
from bcd_tuner.worker_process import JobError
from bcd_tuner.workers import RunJob, WarmBuilder, WarmPool, args_of

from .ledger import Found, Ledger
from .outcome import check_in_turns, end_to_end, measure_untuned
from .results import Job, Result

ROUND = 16
"""Trials a round. Ours measures 8 and less by its own choice."""


_SMALL = {"population_size": 16, "init_min_unmeasured": 4, "genetic_num_iters": 1}


def fair(job: Job) -> Result:
    """Mode (b)."""
    target = resolve_target(job.second.target)
    import_intrinsics(target.kind.name)
    with WarmPool(target) as pool:
        network, lowered = read_and_lower(job.second, target, _silent)
        ledger = Ledger(lowered.tasks, measure_untuned(pool, lowered.tasks))  # the workers are warm after this
        built, ran = pool.counters.build_s, pool.counters.run_s
        _search(job, lowered, pool, ledger)
        total, built, ran = ledger.elapsed_s, pool.counters.build_s - built, pool.counters.run_s - ran
        time_s = {"search": total - built - ran, "build": built, "run": ran, "other": 0.0}
        return _result(job, "b", network, lowered, ledger, pool, time_s)


def _search(job: Job, lowered: LoweredNetwork, pool: WarmPool, ledger: Ledger) -> None:
    """TVM's `tune_tasks` on our workers, from its first design space to its last measurement."""
    depths = depths_of([item.task for item in lowered.tasks], job.second.trials)
    scheduler = GradientBased(seed=1 + job.seed)
    runner = NotingRunner(pool, scheduler, ledger, [item.task.workload.key for item in lowered.tasks])
    contexts = _contexts(job, lowered)
    with tempfile.TemporaryDirectory() as folder:
        ledger.begin()
        tune_tasks(
            tasks=contexts,
            task_weights=[float(item.task.weight) for item in lowered.tasks],
            work_dir=folder,
            max_trials_global=sum(depths.values()),
            max_trials_per_task=max(depths.values()),
            num_trials_per_iter=ROUND,
            builder=WarmBuilder(pool),
            runner=runner,
            database="memory",
            cost_model=_cost_model(job),
            task_scheduler=scheduler,
        )
    runner.note()


def _strategy(job: Job) -> EvolutionarySearch:
    """TVM's own defaults, unless it is to be small: a round takes seconds of CPU otherwise."""
    return EvolutionarySearch(**_SMALL) if job.small else EvolutionarySearch()


def _cost_model(job: Job) -> Any:
    """TVM's own default: all cores train it, which takes minutes in a test beside other work."""
    return XGBModel(num_tuning_cores=1) if job.small else "xgb"


def _contexts(job: Job, lowered: LoweredNetwork) -> list[TuneContext]:
    """What `tune_relax` makes of the tasks, with a thread for each core: its default is one for each physical core."""
    seeds = fork_seed(job.seed, len(lowered.tasks))
    return [
        TuneContext(
            mod=item.mod,
            target=lowered.target,
            space_generator="post-order-apply",
            search_strategy=_strategy(job),
            task_name=item.task.name,
            rand_state=seed,
            num_threads=threads_of(lowered.target),
        )
        for item, seed in zip(lowered.tasks, seeds, strict=True)
    ]


@derived_object
class NotingRunner(PyRunner):  # type: ignore[misc]
    """Measures as ours does, with its limits for slow candidates, and notes each round when it was measured.

    TVM's callbacks come only when the scheduler returns to a task, which would date the first round of all too late.
    """

    def __init__(self, pool: WarmPool, scheduler: Any, ledger: Ledger, keys: Sequence[str]) -> None:
        super().__init__()
        self.pool, self.scheduler, self.ledger, self.keys = pool, scheduler, ledger, keys
        self._n_before = pool.counters.n_builds

    def run(self, runner_inputs: list[RunnerInput]) -> list[RunnerFuture]:
        """One round of one task; none of its candidates may have been built."""
        if not runner_inputs:
            return []
        index, schedules = self._task_of(str(runner_inputs[0].artifact_path))
        key = self.keys[index]
        results: list[RunnerResult] = []
        found: list[Found] = []
        best_s = self.ledger.best_s.get(key)
        for item in runner_inputs:
            results.append(self._measure(item, best_s))
            latency = latency_of(results[-1])
            best_s = min(best_s or math.inf, latency) if math.isfinite(latency) else best_s
            found.append((latency, schedules[str(item.artifact_path)]))
        self.note(key, found)
        return [_Done(result) for result in results]

    def note(self, key: str | None = None, found: Sequence[Found] = ()) -> None:
        """Take a round into the ledger, and with it the trials that were built since the last."""
        n_built = self.pool.counters.n_builds
        self.ledger.note(key, found, n_built - self._n_before)
        self._n_before = n_built

    def _measure(self, item: RunnerInput, best_s: float | None) -> RunnerResult:
        cutoff_s = _CUTOFF * best_s if best_s else None
        [times] = self.pool.run([RunJob(str(item.artifact_path), args_of(item.args_info))], cutoff_s, best_s)
        return RunnerResult(None, times.message) if isinstance(times, JobError) else RunnerResult(times, None)

    def _task_of(self, artifact: str) -> tuple[int, dict[str, Any]]:
        """The index of the task that was just built, and its schedules by artifact."""
        for index, record in enumerate(self.scheduler.tasks_):
            built = record.builder_results
            paths = [None if r.artifact_path is None else str(r.artifact_path) for r in built or ()]
            if artifact in paths:
                candidates = zip(paths, record.measure_candidates, strict=True)
                return index, {path: candidate.sch for path, candidate in candidates if path is not None}
        raise LookupError(f"no task was built into {artifact}")


@derived_object
class _Done(PyRunnerFuture):  # type: ignore[misc]
    """A result that is there already."""

    def __init__(self, measured: RunnerResult) -> None:
        super().__init__()
        self.measured = measured

    def done(self) -> bool:
        return True

    def result(self) -> RunnerResult:
        return self.measured


def untouched(job: Job, builder: Any = "local", runner: Any = "local") -> Result:
    """Mode (a). Its clock includes what TVM imports when tuning begins, and it measures in its own way.

    Args:
        builder: As `tune_relax` takes it; another only in tests, since the local one imports half a minute for each round.
    """
    target = resolve_target(job.second.target)
    with WarmPool(target) as pool:
        network, lowered = read_and_lower(job.second, target, _silent)
        untuned_s = measure_untuned(pool, lowered.tasks)
    ledger = Ledger(lowered.tasks, untuned_s)
    depths = depths_of([item.task for item in lowered.tasks], job.second.trials)
    with tempfile.TemporaryDirectory() as folder:
        ledger.begin()
        tune_relax(
            lowered.mod,
            {},
            target,
            folder,
            max_trials_global=sum(depths.values()),
            max_trials_per_task=max(depths.values()),
            num_trials_per_iter=ROUND,
            builder=builder,
            runner=runner,
            measure_callbacks=[*MeasureCallback.create("default"), NotingCallback(ledger)],
            cost_model=_cost_model(job),
            strategy=_strategy(job),
            seed=job.seed,
        )
    time_s = {"search": 0.0, "build": 0.0, "run": 0.0, "other": ledger.elapsed_s}
    with WarmPool(target) as pool:
        return _result(job, "a", network, lowered, ledger, pool, time_s)


@derived_object
class NotingCallback(PyMeasureCallback):  # type: ignore[misc]
    """Notes a round when the scheduler takes it in: all that stock tuning tells."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self.ledger = ledger
        self._keys: dict[int, str | None] = {}

    def apply(
        self, task_scheduler: Any, task_id: int, measure_candidates: Any, builder_results: Any, runner_results: Any
    ) -> None:
        """Called once for each round of each task."""
        if task_id not in self._keys:
            self._keys[task_id] = _key_of(task_scheduler.tasks_[task_id].ctx.mod)
        found = [(latency_of(r), c.sch) for c, r in zip(measure_candidates, runner_results, strict=True)]
        self.ledger.note(self._keys[task_id], found, len(found))


def _key_of(mod: Any) -> str | None:
    """The workload key; None for a program that the product leaves as it is."""
    try:
        return str(workload_of(mod, "").key)
    except Exception:  # noqa: BLE001 -- whatever it is, it is none of the tasks that are compared
        return None


def _result(
    job: Job,
    mode: str,
    network: ImportedNetwork,
    lowered: LoweredNetwork,
    ledger: Ledger,
    pool: WarmPool,
    time_s: dict[str, float],
) -> Result:
    """Check the winners, apply them, time the network."""
    winners = check_in_turns(pool, lowered.tasks, ledger.winners(), ledger.untuned_s, seed=job.seed)
    untuned_ms, checked_ms = winners.estimates_ms(lowered.tasks)
    equal, runs, remarks = end_to_end(job, network, lowered, winners.schedules, threads_of(lowered.target))
    return Result(
        pair=job.pair,
        seed=job.seed,
        mode=mode,
        trials=ledger.curve[-1][1],
        depth=job.second.trials,
        n_tasks=len(lowered.tasks),
        curve=tuple(ledger.curve),
        checked_untuned_ms=untuned_ms,
        checked_ms=checked_ms,
        equal=equal,
        end_to_end=runs,
        time_s=time_s,
        n_wrong=winners.n_wrong,
        notes=tuple(note for note in (f"{ledger.n_failed} candidates failed" if ledger.n_failed else "", remarks) if note),
    )


def threads_of(target: Target) -> int:
    """Threads that a program for the target uses."""
    return int(target.attrs.get("num-cores", usable_cores()))


def _silent(phase: str, message: str) -> None:
    """Nobody watches."""
