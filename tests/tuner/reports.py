"""Reports of tunes with curves and decisions, as MLflow and `compare` get them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bcd_registry.model import Decision, Grade, RunSummary
from bcd_tuner.report import CurvePoint, Latency, TaskReport, TuneReport
from tests.cli.values import make_report

DECISIONS: tuple[Decision, ...] = (("SamplePerfectTile", (4, 14)), ("SampleCategorical", 2))


def tuned_report(**changes: Any) -> TuneReport:
    """A tune of nine tasks; those that were searched took two rounds each, in their order."""
    report = make_report()
    tasks, seconds = [], 0.0
    for task in report.tasks:
        rounds = []
        if task.grade is not Grade.EXACT:
            rounds = [(seconds + 2.25, 8, task.before_ms or 0.0), (seconds + 4.5, 16, task.after_ms or 0.0)]
            seconds += 4.5
        curve = tuple(CurvePoint(at_s, trials, value_ms) for at_s, trials, value_ms in rounds)
        tasks.append(replace(task, curve=curve, decisions=DECISIONS))
    chosen: dict[str, Any] = {"environment": "e" * 64, "refuted": 1, "tasks": tuple(tasks), "cpu_model": "a CPU"}
    return replace(report, **{**chosen, **changes})


def latency(tuned: float, *, untuned: float = 16.0, spread: float = 0.05, threads: int = 2) -> Latency:
    """End-to-end latencies of a run whose own times scatter by a share."""

    def around(value: float) -> tuple[float, float]:
        return value * (1 - spread), value * (1 + spread)

    return Latency(
        untuned=untuned,
        tuned=tuned,
        estimated_untuned=None,
        estimated_tuned=None,
        onnxruntime=None,
        untuned_range=around(untuned),
        tuned_range=around(tuned),
        threads=threads,
    )


def run_of(report: TuneReport, *, created_at: float = 1.0, finished: bool = True, tuning_s: float = 45.0) -> RunSummary:
    """The run as the registry keeps it."""
    return RunSummary(
        id=report.run_id,
        network=report.network,
        version=report.version,
        environment_key=report.environment,
        seed=report.seed,
        trials=report.trials,
        tuning_s=tuning_s,
        finished=finished,
        created_at=created_at,
        report=json.loads(json.dumps(report.as_json())),
    )


def other_tasks(tasks: Sequence[TaskReport], *, keep: int) -> tuple[TaskReport, ...]:
    """The first tasks as they are, the next with other extents, the last with another cluster as well."""
    rest = [replace(task, workload_key=f"f{task.workload_key[1:]}") for task in tasks[keep:]]
    return (*tasks[:keep], *rest[:-1], replace(rest[-1], cluster="9" * 64))
