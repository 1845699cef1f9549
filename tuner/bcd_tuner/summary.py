"""The report of a run, made from what the run measured."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bcd_registry.model import Grade, NetworkSpec

from .compile import NetworkCheck, spread
from .latency_model import LatencyModel
from .plan import UNTUNED_SKETCH
from .report import CurvePoint, Latency, Saving, TaskReport, TimeSplit, TuneReport
from .rounds import Step, Tuning
from .scheduling import TaskRun


@dataclass(slots=True)
class Clock:
    """Seconds since the command began, and moments worth remembering."""

    began: float = field(default_factory=time.monotonic)
    marks: dict[str, float] = field(default_factory=dict)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self.began

    def mark(self, name: str) -> None:
        """Remember this moment."""
        self.marks[name] = time.monotonic()


def build_report(
    *,
    run_id: str,
    request_seed: int,
    spec: NetworkSpec,
    target: str,
    threads: int,
    runs: Sequence[TaskRun],
    tuning: Tuning,
    time_split: TimeSplit,
    outcome: NetworkCheck | None,
    saving: Saving,
    clock: Clock,
    interrupted: bool,
    notes: Sequence[str],
    model: LatencyModel,
    environment_key: str,
    cpu_model: str,
) -> TuneReport:
    """Put the figures together; nothing is measured here."""
    first, curves = tuning.first_candidate_at, _task_curves(tuning.steps)
    return TuneReport(
        run_id=run_id,
        network=spec.name,
        version=spec.version,
        target=target,
        seed=request_seed,
        depth=spec.trials,
        trials=tuning.trials,
        wall_s=clock.elapsed_s,
        time_s=time_split,
        latency_ms=_latency(runs, outcome, threads),
        checked=outcome is not None and outcome.equal,
        tasks=tuple(_task(run, curves.get(run.key, [])) for run in runs),
        curve=tuple(tuning.curve(lambda run: run.untuned_s or run.best_s or 0.0)),
        saving=saving,
        first_candidate_s=None if first is None else first - clock.marks["extracted"],
        equals_onnxruntime=_equals_onnxruntime(outcome),
        interrupted=interrupted,
        cut_short=tuning.cut_short,
        notes=tuple(dict.fromkeys(notes)),
        cost_model={
            "n_samples": len(model.samples),
            "n_pretrained": model.n_pretrained,
            "rank_accuracy": model.held_out_accuracy,
            "train_s": model.train_s,
        },
        environment=environment_key,
        cpu_model=cpu_model,
        refuted=sum(_n_refuted(run) for run in runs),
    )


def after_s(run: TaskRun) -> float | None:
    """Latency of what is used for the task now, seconds."""
    if run.record is not None and run.record.sketch != UNTUNED_SKETCH:
        return run.record.median_s
    return run.untuned_s


def _latency(runs: Sequence[TaskRun], outcome: NetworkCheck | None, threads: int) -> Latency:
    measured = (outcome.untuned_s, outcome.tuned_s, outcome.onnxruntime_s) if outcome else ((), (), ())
    medians = [statistics.median(r) * 1e3 if r else None for r in measured]
    low_high = [_in_ms(spread(r)) if r else None for r in measured]
    known = all(run.untuned_s is not None for run in runs)
    return Latency(
        untuned=medians[0],
        tuned=medians[1],
        estimated_untuned=sum(run.weight * (run.untuned_s or 0.0) for run in runs) * 1e3 if known else None,
        estimated_tuned=sum(run.weight * (after_s(run) or 0.0) for run in runs) * 1e3 if known else None,
        onnxruntime=medians[2],
        untuned_range=low_high[0],
        tuned_range=low_high[1],
        onnxruntime_range=low_high[2],
        threads=threads,
    )


def _equals_onnxruntime(outcome: NetworkCheck | None) -> bool | None:
    return None if outcome is None or outcome.imported_error is None else not outcome.imported_error


def _in_ms(pair: tuple[float, float]) -> tuple[float, float]:
    return pair[0] * 1e3, pair[1] * 1e3


def _task_curves(steps: Sequence[Step]) -> Mapping[str, list[CurvePoint]]:
    """The best latency of each task that was searched, after each of its own rounds, by workload key."""
    curves: dict[str, list[CurvePoint]] = {}
    trials: Counter[str] = Counter()
    before = 0
    for step in steps:
        key, best_s = step.task.key, step.best_s[step.task.key]
        trials[key] += step.trials - before
        before = step.trials
        if best_s is not None and math.isfinite(best_s):
            curves.setdefault(key, []).append(CurvePoint(step.seconds, trials[key], best_s * 1e3))
    return curves


def _n_refuted(run: TaskRun) -> int:
    """Priors of the registry that misled the task."""
    if not run.refuted or run.search is None:
        return 0
    given = {prior.record.id for prior in run.planned.priors}
    return sum(misled.prior.record.id in given for misled in run.search.misled)


def _task(run: TaskRun, curve: Sequence[CurvePoint]) -> TaskReport:
    task, match = run.planned.task, run.planned.match
    after = after_s(run)
    searched = run.search.notes if run.search else []
    return TaskReport(
        name=task.name,
        op=task.workload.op,
        workload_key=run.key,
        cluster=task.workload.cluster,
        weight=task.weight,
        grade=match.grade,
        prior=run.planned.prior,
        trials=run.trials,
        seconds=run.seconds,
        before_ms=None if run.untuned_s is None else run.untuned_s * 1e3,
        after_ms=None if after is None else after * 1e3,
        checked=run.checked or match.grade is Grade.EXACT,
        note="; ".join([match.reason, *searched, *run.notes]),
        decisions=run.record.decisions if run.record else (),
        curve=tuple(curve),
    )
