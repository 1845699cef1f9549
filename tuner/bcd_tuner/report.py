"""What a run says of itself while it goes on and when it ends. Plain values: no TVM, no terminal."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bcd_registry.model import Decision, Grade, PriorSource

SCHEMA = 1
"""Version of the JSON that `tune --json` and `plan --json` print."""


@dataclass(frozen=True, slots=True)
class ProgressEvent:
    """One step of a run.

    Attributes:
        phase: `read`, `lower`, `lookup`, `start`, `tune`, `check`, `compile`, `verify` or `done`.
        message: One line for people; empty when the numbers say it.
        task: Name of the task in work, with its label; empty outside `tune` and `check`.
        best_ms: Best latency of that task so far.
        estimated_ms: Weighted sum of the tasks' best latencies so far.
        trials: Trials used in this run, of `trials_planned`.
        elapsed_s: Seconds since the command began.
        left_s: Seconds of tuning left, estimated from this run's own pace; None before the first round.
    """

    phase: str
    message: str = ""
    task: str = ""
    best_ms: float | None = None
    estimated_ms: float | None = None
    trials: int = 0
    trials_planned: int = 0
    elapsed_s: float = 0.0
    left_s: float | None = None


ProgressSink = Callable[[ProgressEvent], None]


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One step of a tuning curve.

    Attributes:
        seconds: Seconds of tuning so far, start of the worker pool included.
        trials: Trials so far.
        estimated_ms: Weighted sum of the best latencies by task at that moment (estimated, not end to end).
    """

    seconds: float
    trials: int
    estimated_ms: float


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """What is expected for a task before anything runs.

    Attributes:
        trials: Trials granted.
        seconds: Expected seconds at the registry's own cost a trial; None when no run is known.
        note: Why the grade is not better.
    """

    name: str
    op: str
    workload_key: str
    cluster: str
    weight: int
    grade: Grade
    prior: PriorSource
    trials: int
    seconds: float | None
    known_ms: float | None
    note: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Lookups turned into work."""

    network: str
    version: str
    target: str
    tasks: tuple[TaskPlan, ...]
    seconds_a_trial: float | None
    basis: str

    @property
    def trials(self) -> int:
        """Trials granted in all."""
        return sum(t.trials for t in self.tasks)

    def as_json(self) -> dict[str, Any]:
        """The object that `plan --json` prints."""
        return {"schema": SCHEMA, "trials": self.trials, **dataclasses.asdict(self)}


@dataclass(frozen=True, slots=True)
class TaskReport:
    """What became of one task.

    Attributes:
        seconds: Tuning seconds spent on it.
        before_ms: Measured latency of the untuned program, milliseconds; None when it was not measured.
        after_ms: Measured latency of what is used now; never above `before_ms` beyond noise.
        checked: Its output equals the untuned program's.
        note: Why it is as it is, for people.
        decisions: Of the schedule in use; empty for the untuned program.
        curve: Its own best latency against its own trials, and against the seconds of the run.
    """

    name: str
    op: str
    workload_key: str
    cluster: str
    weight: int
    grade: Grade
    prior: PriorSource
    trials: int
    seconds: float
    before_ms: float | None
    after_ms: float | None
    checked: bool
    note: str
    decisions: tuple[Decision, ...] = ()
    curve: tuple[CurvePoint, ...] = ()


@dataclass(frozen=True, slots=True)
class TimeSplit:
    """Seconds of tuning by what they went into; the four add up to the tuning's wall time."""

    search: float
    build: float
    run: float
    other: float

    @property
    def total(self) -> float:
        """Wall time of the tuning, seconds."""
        return self.search + self.build + self.run + self.other


@dataclass(frozen=True, slots=True)
class Latency:
    """Latencies of the whole network, milliseconds.

    Attributes:
        untuned: Median measured end to end without schedules.
        tuned: Median measured end to end with them, interleaved with `untuned`.
        untuned_range: 10th and 90th percentile of the same runs.
        estimated_untuned: Weighted sum of the tasks' own latencies.
        onnxruntime: Median of the same inputs in onnxruntime in the same run; None without it.
        threads: Threads used by all of them.
    """

    untuned: float | None
    tuned: float | None
    estimated_untuned: float | None
    estimated_tuned: float | None
    onnxruntime: float | None
    untuned_range: tuple[float, float] | None = None
    tuned_range: tuple[float, float] | None = None
    onnxruntime_range: tuple[float, float] | None = None
    threads: int = 0


@dataclass(frozen=True, slots=True)
class Saving:
    """What the registry saved in this run: an estimate, never a measurement.

    Attributes:
        trials: Trials that an empty registry would have granted to the tasks that are done, less those they used.
        seconds: `trials` at the basis' seconds a trial.
        basis: Where the seconds a trial come from.
    """

    trials: int
    seconds: float | None
    basis: str


@dataclass(frozen=True, slots=True)
class TuneReport:
    """The outcome of `tune`.

    Attributes:
        wall_s: Seconds from the command's start to its end.
        first_candidate_s: Seconds from tasks extracted to the first measured candidate; None with no trial.
        checked: The tuned network's outputs equal the untuned one's.
        equals_onnxruntime: The imported network's outputs equal onnxruntime's; None where it is not installed.
        interrupted: Cut short by Ctrl-C: what was found is kept as priors, and nothing was checked.
        cut_short: The time budget ended the search: unfinished tasks are priors for the next run.
        environment: Key of the environment that it was measured in.
        cpu_model: The processor; a note in the environment, so not part of its key.
        refuted: Priors that misled a task, so that the registry was told.
        mlflow_experiment_id: Where MLflow keeps the run `mlflow_run_id`; None when it has none.
        notes: Warnings for people, one line each.
    """

    run_id: str
    network: str
    version: str
    target: str
    seed: int
    depth: int
    trials: int
    wall_s: float
    time_s: TimeSplit
    latency_ms: Latency
    checked: bool
    tasks: tuple[TaskReport, ...]
    curve: tuple[CurvePoint, ...]
    saving: Saving
    first_candidate_s: float | None = None
    equals_onnxruntime: bool | None = None
    interrupted: bool = False
    cut_short: bool = False
    notes: tuple[str, ...] = ()
    cost_model: dict[str, Any] = field(default_factory=dict)
    mlflow_run_id: str | None = None
    curve_png: str | None = None
    environment: str = ""
    cpu_model: str = ""
    refuted: int = 0
    mlflow_experiment_id: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The object that `tune --json` prints."""
        return {"schema": SCHEMA, **dataclasses.asdict(self)}
