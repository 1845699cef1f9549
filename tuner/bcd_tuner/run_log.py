"""What a tune puts on record in MLflow, as plain values: one run with what matters, and one for each cluster below it.

MLflow's pages fold child runs and chart none of them, so the curves that matter are on the parent as well. A chart's x axis
is the step of a metric: each curve is there twice, against trials and against whole seconds.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bcd_registry.model import Decision, Grade
from bcd_registry.urls import masked

from .report import CurvePoint, TaskReport, TuneReport

RUN_TAG = "bcd.run_id"
"""Names the parent run of a tune; no two have the same."""

PARENT_TAG = "bcd.part_of"
"""Names the tune that a cluster's run belongs to."""

_PARAM_CHARS = 500
_URL = re.compile(r"\S+://\S+")
_TEXT_TAG_CHARS = 4500
_DESCRIPTION = "mlflow.note.content"
_COMMIT = "mlflow.source.git.commit"
_NOT_IN_TABLE = ("decisions", "curve")


@dataclass(frozen=True, slots=True)
class Point:
    """One value of a metric.

    Attributes:
        at_s: Unix seconds.
        step: Where it lies on the x axis: trials or whole seconds; 0 for what has no axis.
    """

    name: str
    value: float
    at_s: float
    step: int = 0


@dataclass(frozen=True, slots=True)
class RunLog:
    """A run as it is to be logged. Its own JSON is what waits on disk while MLflow does not answer.

    Attributes:
        status: MLflow's word: `FINISHED` or `KILLED`.
        started_s: Unix seconds, as `ended_s`.
        texts: Files by name.
        tables: Columns by the table's file name.
        children: One for each cluster; they have none of their own.
    """

    name: str
    status: str
    started_s: float
    ended_s: float
    tags: dict[str, str]
    params: dict[str, str]
    points: tuple[Point, ...]
    texts: dict[str, str] = field(default_factory=dict)
    tables: dict[str, dict[str, list[Any]]] = field(default_factory=dict)
    children: tuple[RunLog, ...] = ()

    @property
    def run_id(self) -> str:
        """The tune that it is of."""
        return self.tags[RUN_TAG]


def without_secrets(text: str) -> str:
    """The text with its URLs masked."""
    return _URL.sub(lambda url: masked(url[0]), text)


def make_run_log(report: TuneReport, *, params: Mapping[str, object], ended_s: float) -> RunLog:
    """Everything that a tune logs.

    Args:
        params: What the report does not know: budgets, the registry, the commit (`git_commit`). URLs are masked here.
        ended_s: Unix seconds.
    """
    began_s = ended_s - report.wall_s
    own = {"bcd.network": report.network, "bcd.version": report.version, "bcd.environment": report.environment}
    commit = params.get("git_commit")
    return RunLog(
        name=f"{report.network} {report.version} seed {report.seed}",
        status="KILLED" if report.interrupted else "FINISHED",
        started_s=began_s,
        ended_s=ended_s,
        tags={RUN_TAG: report.run_id, "bcd.kind": "tune", **own, **({_COMMIT: str(commit)} if commit else {})},
        params=_texts(_params(report) | dict(params)),
        points=tuple(_finite([*_curve(report.curve, began_s), *_coverage(report, began_s), *_figures(report, ended_s)])),
        texts={"report.json": json.dumps(report.as_json(), indent=1), "decisions.txt": _decisions(report.tasks)},
        tables={"tasks.json": _task_table(report.tasks), "clusters.json": _cluster_table(report.tasks)},
        children=tuple(_child(report, own, tasks, began_s, ended_s) for tasks in _by_cluster(report.tasks)),
    )


def coverage(report: TuneReport) -> list[tuple[CurvePoint, dict[Grade, float]]]:
    """At each point of the curve, the share of the untuned time in tasks that have a measured schedule, by grade.

    Where an untuned latency is not known, calls stand for time.
    """
    known = all(task.before_ms is not None for task in report.tasks) and any(task.before_ms for task in report.tasks)
    cost = [task.weight * ((task.before_ms or 0.0) if known else 1.0) for task in report.tasks]
    whole = sum(cost) or 1.0
    found = []
    for point in report.curve:
        shares = dict.fromkeys(Grade, 0.0)
        for task, share in zip(report.tasks, cost, strict=True):
            if task.grade is Grade.EXACT or (task.curve and task.curve[0].seconds <= point.seconds):
                shares[task.grade] += share / whole
        found.append((point, shares))
    return found


def _params(report: TuneReport) -> dict[str, object]:
    grades = Counter(str(task.grade) for task in report.tasks)
    return {
        "network": report.network,
        "version": report.version,
        "target": report.target,
        "environment": report.environment,
        "seed": report.seed,
        "depth": report.depth,
        "n_tasks": len(report.tasks),
        "threads": report.latency_ms.threads,
        "saved_basis": report.saving.basis,
        **{f"grade.{grade}": n for grade, n in sorted(grades.items())},
    }


def _texts(params: Mapping[str, object]) -> dict[str, str]:
    """Parameters as MLflow takes them; what is None has no value to show."""
    return {name: without_secrets(str(value))[:_PARAM_CHARS] for name, value in params.items() if value is not None}


def _finite(points: Sequence[Point]) -> Iterator[Point]:
    return (point for point in points if math.isfinite(point.value))


def _twice(name: str, value: float, point: CurvePoint, began_s: float) -> list[Point]:
    """The same value against trials and against seconds."""
    before, slash, last = name.rpartition("/")
    at_s = began_s + point.seconds
    return [
        Point(f"{before}_by_trials/{last}" if slash else f"{name}_by_trials", value, at_s, point.trials),
        Point(f"{before}_by_seconds/{last}" if slash else f"{name}_by_seconds", value, at_s, int(point.seconds)),
    ]


def _curve(curve: Sequence[CurvePoint], began_s: float) -> list[Point]:
    return [p for point in curve for p in _twice("estimated_ms", point.estimated_ms, point, began_s)]


def _coverage(report: TuneReport, began_s: float) -> list[Point]:
    """Only where it changes, and at the end, so that it is a line."""
    steps = coverage(report)
    points: list[Point] = []
    for grade in {task.grade for task in report.tasks}:
        before = math.nan
        for number, (point, shares) in enumerate(steps):
            if shares[grade] != before or number == len(steps) - 1:
                points += _twice(f"coverage/{grade}", shares[grade], point, began_s)
            before = shares[grade]
    return points


def _figures(report: TuneReport, at_s: float) -> list[Point]:
    """What is one number for the run; a figure that nobody knows is left out."""
    latency = report.latency_ms
    hits = Counter(str(task.grade) for task in report.tasks)
    values: dict[str, float | None] = {
        "end_to_end_ms.untuned": latency.untuned,
        "end_to_end_ms.tuned": latency.tuned,
        "end_to_end_ms.onnxruntime": latency.onnxruntime,
        "estimated_ms.untuned": latency.estimated_untuned,
        "estimated_ms.tuned": latency.estimated_tuned,
        "trials": report.trials,
        "wall_s": report.wall_s,
        "tuning_s": report.time_s.total,
        "first_candidate_s": report.first_candidate_s,
        "checked": float(report.checked),
        "refuted_priors": report.refuted,
        "saved_trials_estimated": report.saving.trials,
        "saved_s_estimated": report.saving.seconds,
        **{f"time_s.{part}": seconds for part, seconds in asdict(report.time_s).items()},
        **{f"hits.{grade}": float(hits[grade]) for grade in Grade},
    }
    spreads = (("untuned", latency.untuned_range), ("tuned", latency.tuned_range), ("onnxruntime", latency.onnxruntime_range))
    for name, low_high in spreads:
        if low_high is not None:
            values |= {f"end_to_end_ms.{name}_p10": low_high[0], f"end_to_end_ms.{name}_p90": low_high[1]}
    if latency.untuned and latency.tuned:
        values["speedup"] = latency.untuned / latency.tuned
    return [Point(name, float(value), at_s) for name, value in values.items() if value is not None]


def _by_cluster(tasks: Sequence[TaskReport]) -> list[list[TaskReport]]:
    """Tasks by cluster, the costliest cluster first."""
    clusters: dict[str, list[TaskReport]] = {}
    for task in tasks:
        clusters.setdefault(task.cluster, []).append(task)
    return sorted(clusters.values(), key=lambda members: -(_sum(members, "before_ms") or 0.0))


def _child(report: TuneReport, own: Mapping[str, str], tasks: Sequence[TaskReport], began_s: float, ended_s: float) -> RunLog:
    """The run of one cluster: its curve, its figures and the decisions of its winners."""
    figures: dict[str, float | None] = {
        "estimated_ms.untuned": _sum(tasks, "before_ms"),
        "estimated_ms.tuned": _sum(tasks, "after_ms"),
        "trials": sum(task.trials for task in tasks),
        "tuning_s": sum(task.seconds for task in tasks),
        "n_tasks": len(tasks),
        **{f"hits.{grade}": n for grade, n in Counter(str(task.grade) for task in tasks).items()},
    }
    points = [Point(name, float(value), ended_s) for name, value in figures.items() if value is not None]
    decisions = _decisions(tasks)
    if len(decisions) > _TEXT_TAG_CHARS:
        decisions = f"{decisions[:_TEXT_TAG_CHARS]}\n... all of them are in decisions.txt of the run above"
    return RunLog(
        name=f"{tasks[0].op} {tasks[0].cluster[:8]}",
        status="KILLED" if report.interrupted else "FINISHED",
        started_s=began_s,
        ended_s=ended_s,
        tags={
            PARENT_TAG: report.run_id,
            "bcd.kind": "cluster",
            "bcd.cluster": tasks[0].cluster,
            **own,
            _DESCRIPTION: decisions,
        },
        params={"op": tasks[0].op, "cluster": tasks[0].cluster, "n_tasks": str(len(tasks))},
        points=tuple(_finite([*_curve(_cluster_curve(tasks), began_s), *points])),
    )


def _cluster_curve(tasks: Sequence[TaskReport]) -> list[CurvePoint]:
    """The weighted sum of the best latencies so far, against the trials of the whole cluster.

    What is reused counts from the start; a point is left out while a task of the cluster has no latency at all.
    """
    rounds = sorted(
        ((point, index) for index, task in enumerate(tasks) for point in task.curve), key=lambda found: found[0].seconds
    )
    best = [task.after_ms if task.grade is Grade.EXACT or task.before_ms is None else task.before_ms for task in tasks]
    trials = [0] * len(tasks)
    curve = []
    for point, index in rounds:
        before = best[index]
        best[index] = point.estimated_ms if before is None else min(before, point.estimated_ms)
        trials[index] = point.trials
        known = [task.weight * value for task, value in zip(tasks, best, strict=True) if value is not None]
        if len(known) == len(tasks):
            curve.append(CurvePoint(point.seconds, sum(trials), sum(known)))
    return curve


def _sum(tasks: Sequence[TaskReport], name: str) -> float | None:
    """Latencies times calls; None when one is not known."""
    values = [getattr(task, name) for task in tasks]
    return None if None in values else sum(task.weight * value for task, value in zip(tasks, values, strict=True))


def _decisions(tasks: Sequence[TaskReport]) -> str:
    """What was decided for each task, for people."""
    return "\n\n".join(f"{_heading(task)}\n{_lines(task.decisions)}" for task in tasks)


def _heading(task: TaskReport) -> str:
    before, after = ("-" if value is None else f"{value:.4g} ms" for value in (task.before_ms, task.after_ms))
    what = f"{task.name} ({task.op}, {task.weight}x, {task.grade}), workload {task.workload_key[:12]}"
    return f"{what}: {before} untuned, {after} now"


def _lines(decisions: Sequence[Decision]) -> str:
    if not decisions:
        return "    the untuned program"
    return "\n".join(f"    {kind} {list(value) if isinstance(value, tuple) else value}" for kind, value in decisions)


def _task_table(tasks: Sequence[TaskReport]) -> dict[str, list[Any]]:
    """Plain columns: one row a task."""
    rows = [{name: value for name, value in asdict(task).items() if name not in _NOT_IN_TABLE} for task in tasks]
    names = list(rows[0]) if rows else ["name"]
    return {name: [str(row[name]) if name in ("grade", "prior") else row[name] for row in rows] for name in names}


def _cluster_table(tasks: Sequence[TaskReport]) -> dict[str, list[Any]]:
    groups = _by_cluster(tasks)
    return {
        "op": [members[0].op for members in groups],
        "cluster": [members[0].cluster for members in groups],
        "tasks": [len(members) for members in groups],
        "trials": [sum(task.trials for task in members) for members in groups],
        "seconds": [sum(task.seconds for task in members) for members in groups],
        "before_ms": [_sum(members, "before_ms") for members in groups],
        "after_ms": [_sum(members, "after_ms") for members in groups],
    }
