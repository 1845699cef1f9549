"""Winners are checked task by task: equal outputs, and not slower than the untuned program measured beside them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tvm.s_tir import Schedule

from bcd_registry.model import RecordState, TuningRecord

from .checking import Case, compare_many, measure_modules
from .scheduling import TaskRun
from .search import Candidate
from .worker_checks import Comparison
from .worker_process import JobError
from .workers import WarmPool

_ATTEMPTS = 3
_REPEATS = 5

RecordOf = Callable[[TaskRun, Candidate], TuningRecord]
UntunedRecordOf = Callable[[TaskRun], TuningRecord]


@dataclass(slots=True)
class Checked:
    """What the checks decided.

    Attributes:
        schedules: By workload key, what is applied to the network; tasks that stay untuned are not in it.
        records: Checked records to publish.
        wrong: Records whose output differed, with the reason, to quarantine.
    """

    schedules: dict[str, Schedule] = field(default_factory=dict)
    records: list[TuningRecord] = field(default_factory=list)
    wrong: list[tuple[TuningRecord, str]] = field(default_factory=list)


def check_winners(
    runs: Sequence[TaskRun], pool: WarmPool, record_of: RecordOf, untuned_record: UntunedRecordOf, *, seed: int
) -> Checked:
    """Check the best candidate of every task that was searched; where it fails, the next best, three at most.

    A task for which nothing passes stays untuned, and a record that says so is made, so that it is not searched again.
    """
    checked, by_key = Checked(), {run.key: run for run in runs}
    waiting = {run.key: _ranked(run) for run in runs if run.adopted or (run.planned.trials and (run.trials or run.finished))}
    while batch := [(by_key[key], ranked[0]) for key, ranked in waiting.items() if ranked]:
        comparisons = compare_many(pool, [Case(run.mod, c.schedule.mod) for run, c in batch], seed=seed, repeats=_REPEATS)
        for (run, candidate), comparison in zip(batch, comparisons, strict=True):
            passed = _judge(run, candidate, comparison, checked, record_of)
            waiting[run.key] = [] if passed else waiting[run.key][1:]
    _measure_missing(runs, pool)
    for run in (by_key[key] for key in waiting):
        if not run.checked:
            _stay_untuned(run, checked, untuned_record)
    return checked


def _measure_missing(runs: Sequence[TaskRun], pool: WarmPool) -> None:
    """Measure the untuned programs of tasks that no comparison measured."""
    missing = [run for run in runs if run.untuned_s is None]
    for run, times in zip(missing, measure_modules(pool, [run.mod for run in missing]), strict=True):
        if isinstance(times, JobError):
            run.notes.append(f"the untuned program cannot be measured: {times.message}")
        else:
            run.untuned_s = statistics.median(times)


def _ranked(run: TaskRun) -> list[Candidate]:
    """The candidates worth checking: measured, and faster than the untuned program was."""
    if run.search is None:
        return [run.adopted] if run.adopted else []
    bound = run.untuned_s if run.untuned_s is not None else math.inf
    good = [c for c in run.search.measured if c.latency_s is not None and c.latency_s < bound]
    return sorted(good, key=lambda c: c.latency_s or 0.0)[:_ATTEMPTS]


def _judge(run: TaskRun, candidate: Candidate, comparison: Comparison, checked: Checked, record_of: RecordOf) -> bool:
    """Whether the candidate is what the task will use; takes it into `checked` then."""
    if not comparison.equal:
        reason = f"a candidate failed its check: {comparison.error}"
        run.notes.append(reason)
        checked.wrong.append((record_of(run, candidate), reason))
        return False
    run.untuned_s = statistics.median(comparison.reference_s)
    if statistics.median(comparison.tuned_s) > run.untuned_s:
        return False
    record = record_of(run, candidate).with_state(
        RecordState.CHECKED, run_times_s=comparison.tuned_s, untuned_s=run.untuned_s, depth=_depth(run)
    )
    run.record, run.checked = record, True
    checked.records.append(record)
    checked.schedules[run.key] = candidate.schedule
    return True


def _depth(run: TaskRun) -> int:
    """The depth that the search came to the end of; 0 when it was cut short."""
    return run.planned.depth if run.finished else 0


def _stay_untuned(run: TaskRun, checked: Checked, untuned_record: UntunedRecordOf) -> None:
    run.notes.append("nothing measured was faster than the untuned program, which is used")
    run.checked = True
    if run.untuned_s is not None and run.finished:
        run.record = untuned_record(run).with_state(RecordState.CHECKED, depth=_depth(run))
        checked.records.append(run.record)
