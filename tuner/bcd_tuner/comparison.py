"""Two versions side by side, from the reports of their runs. Pure: nothing is measured or opened here.

A difference counts only when it is larger than the noise that the runs themselves show, so that "no difference seen" is an
answer; and stored milliseconds of another machine are not compared at all.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from bcd_registry.model import Grade, RunSummary

SCHEMA = 1
"""Version of the JSON that `compare --json` prints."""

N_COSTLY = 10
"""Tasks that are shown one by one."""

_TIME_NOISE = 0.1
"""Share by which the seconds of two equal tunes may differ."""


class Change(enum.StrEnum):
    """What became of a figure from the first version to the second."""

    LOWER = "lower"
    HIGHER = "higher"
    SAME = "no difference seen"
    UNKNOWN = "not compared"


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure with what it scatters between.

    Attributes:
        median: Median of the runs' figures.
        low: Lowest of them; for a latency the lowest 10th percentile of a run.
        high: Highest of them; for a latency the highest 90th percentile of a run.
    """

    median: float
    low: float
    high: float

    def overlaps(self, other: Spread) -> bool:
        """Whether some value lies in both."""
        return self.low <= other.high and other.low <= self.high


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a figure differs.

    Attributes:
        ratio: Second median over the first; None when they are not compared.
        reason: Why it was judged so, one line.
    """

    change: Change
    ratio: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a network as its runs saw it.

    Attributes:
        label: What the user called it.
        run_ids: The runs, newest first; tasks, grades and the curve are the newest one's.
        untuned: End-to-end latency without schedules, milliseconds; None when no run measured it. Likewise the next two.
        speedup: `untuned` over `tuned`.
        grades: Tasks by grade.
        curve: Seconds, trials and estimated latency (ms) of each step.
    """

    label: str
    network: str
    version: str
    run_ids: tuple[str, ...]
    seeds: tuple[int, ...]
    created_at: float
    environment: str
    machine: str
    threads: int
    untuned: Spread | None
    tuned: Spread | None
    onnxruntime: Spread | None
    speedup: Spread | None
    tuning_s: Spread
    trials: Spread
    grades: Mapping[str, int]
    n_tasks: int
    curve: tuple[tuple[float, int, float], ...]
    mlflow_run_id: str | None
    mlflow_experiment_id: str | None

    @property
    def title(self) -> str:
        """The network's name and version."""
        return f"{self.network} {self.version}".strip()


@dataclass(frozen=True, slots=True)
class CostlyTask:
    """A task of the second version.

    Attributes:
        kind: `shared` with the first version, `sibling` of one of its tasks, or `new`.
        before_ms: Its latency times its calls in the first version; None where it is not shared or not comparable.
        now_ms: The same in the second.
        share: Of the sum over all tasks of the second version.
    """

    op: str
    workload_key: str
    weight: int
    grade: str
    kind: str
    before_ms: float | None
    now_ms: float
    share: float


@dataclass(frozen=True, slots=True)
class TaskChange:
    """How the tasks of the second version relate to those of the first.

    Attributes:
        shared: Tasks with the same workload.
        sibling: Others in a cluster of the first version.
        new: The rest.
        gone: Tasks of the first version that the second has not.
        shares: Share of the second version's latency by the first three names (estimated).
    """

    shared: int
    sibling: int
    new: int
    gone: int
    shares: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two versions side by side.

    Attributes:
        comparable: Whether their milliseconds come from one machine.
        notes: What a reader should know, one line each.
        mlflow_url: MLflow's own page that compares the two newest runs; None without one.
    """

    first: Version
    second: Version
    comparable: bool
    latency: Verdict
    speedup: Verdict
    tuning_s: Verdict
    trials: Verdict
    tasks: TaskChange
    costly: tuple[CostlyTask, ...]
    notes: tuple[str, ...]
    mlflow_url: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The object that `compare --json` prints."""
        return {"schema": SCHEMA, **dataclasses.asdict(self)}


def newest_runs(runs: Sequence[RunSummary], n: int) -> list[RunSummary]:
    """The newest runs that came to their end in the environment of the newest of them, at most `n`."""
    ended = sorted((run for run in runs if run.finished), key=lambda run: -run.created_at)
    return [run for run in ended if run.environment_key == ended[0].environment_key][:n]


def version_of(label: str, runs: Sequence[RunSummary]) -> Version:
    """What the runs of one version say together.

    Args:
        runs: Newest first, at least one, all of one environment.
    """
    newest = runs[0]
    report = newest.report
    latency = [run.report["latency_ms"] for run in runs]
    grades = Counter(task["grade"] for task in report["tasks"])
    return Version(
        label=label,
        network=newest.network,
        version=newest.version,
        run_ids=tuple(run.id for run in runs),
        seeds=tuple(run.seed for run in runs),
        created_at=newest.created_at,
        environment=newest.environment_key,
        machine=str(report.get("cpu_model") or ""),
        threads=int(report["latency_ms"].get("threads") or 0),
        untuned=_latency(latency, "untuned"),
        tuned=_latency(latency, "tuned"),
        onnxruntime=_latency(latency, "onnxruntime"),
        speedup=_speedup(latency),
        tuning_s=_range([run.tuning_s for run in runs]),
        trials=_range([float(run.trials) for run in runs]),
        grades={str(grade): grades[grade] for grade in Grade if grades[grade]},
        n_tasks=len(report["tasks"]),
        curve=tuple((p["seconds"], p["trials"], p["estimated_ms"]) for p in report["curve"]),
        mlflow_run_id=report.get("mlflow_run_id"),
        mlflow_experiment_id=report.get("mlflow_experiment_id"),
    )


def compare_runs(
    labels: tuple[str, str],
    runs: tuple[Sequence[RunSummary], Sequence[RunSummary]],
    *,
    differences: Sequence[str] = (),
    mlflow_uri: str = "",
) -> Comparison:
    """Put two versions side by side.

    Args:
        labels: What the user called the first version and the second.
        runs: Theirs, newest first, at least one; those of one version are all of one environment, see `newest_runs`.
        differences: What differs between their environments, one line each; they need not be compared when there are some.
        mlflow_uri: Where runs are logged.
    """
    first, second = (version_of(label, found) for label, found in zip(labels, runs, strict=True))
    reports = runs[0][0].report, runs[1][0].report
    apart = _apart(first, second, differences)
    return Comparison(
        first=first,
        second=second,
        comparable=not apart,
        latency=_judge(first.tuned, second.tuned, apart),
        speedup=_judge(first.speedup, second.speedup),
        tuning_s=_judge(first.tuning_s, second.tuning_s, apart, noise=_TIME_NOISE),
        trials=_judge(first.trials, second.trials),
        tasks=_task_change(*reports),
        costly=_costly(*reports, comparable=not apart),
        notes=tuple(_notes(first, second, apart)),
        mlflow_url=compare_url(mlflow_uri, first, second),
    )


def compare_url(mlflow_uri: str, first: Version, second: Version) -> str | None:
    """MLflow's page for the two newest runs; None without a server, or when one of them was not logged there."""
    parts = urlsplit(mlflow_uri)
    runs = (first.mlflow_run_id, second.mlflow_run_id)
    experiments = dict.fromkeys((first.mlflow_experiment_id, second.mlflow_experiment_id))
    if parts.scheme not in ("http", "https") or None in runs or None in experiments:
        return None
    bare = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))
    return f"{bare}/#/compare-runs?runs={_in_url(list(runs))}&experiments={_in_url(list(experiments))}"


def _in_url(values: Sequence[str | None]) -> str:
    return quote(json.dumps(values, separators=(",", ":")), safe="")


def _apart(first: Version, second: Version, differences: Sequence[str]) -> str:
    """Why milliseconds of the two are not compared; empty when they are."""
    if first.environment != second.environment:
        return f"measured in other environments: {'; '.join(differences) or 'theirs differ'}"
    if first.machine and second.machine and first.machine != second.machine:
        return f"measured on other processors: {first.machine}, and {second.machine}"
    if first.threads != second.threads:
        return f"measured on {first.threads} threads, and on {second.threads}"
    return ""


def _latency(latencies: Sequence[Mapping[str, Any]], name: str) -> Spread | None:
    known = [found for found in latencies if found.get(name) is not None]
    if not known:
        return None
    ranges = [found.get(f"{name}_range") or (found[name], found[name]) for found in known]
    median = statistics.median(found[name] for found in known)
    return Spread(median, min(low for low, _ in ranges), max(high for _, high in ranges))


def _speedup(latencies: Sequence[Mapping[str, Any]]) -> Spread | None:
    """Both were measured in turns, so that a slow minute is in both; the range is that of what the percentiles allow."""
    ratios = []
    for found in latencies:
        if found.get("untuned") and found.get("tuned"):
            before = found.get("untuned_range") or (found["untuned"],) * 2
            now = found.get("tuned_range") or (found["tuned"],) * 2
            ratios.append((found["untuned"] / found["tuned"], before[0] / now[1], before[1] / now[0]))
    if not ratios:
        return None
    return Spread(statistics.median(r[0] for r in ratios), min(r[1] for r in ratios), max(r[2] for r in ratios))


def _range(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))


def _judge(first: Spread | None, second: Spread | None, apart: str = "", *, noise: float = 0.0) -> Verdict:
    """Two figures differ when their ranges, widened by the noise, do not overlap."""
    if apart:
        return Verdict(Change.UNKNOWN, None, apart)
    if first is None or second is None:
        return Verdict(Change.UNKNOWN, None, "not measured by both")
    ratio = second.median / first.median if first.median else None
    wide = [Spread(s.median, s.low * (1.0 - noise), s.high * (1.0 + noise)) for s in (first, second)]
    if wide[0].overlaps(wide[1]):
        return Verdict(Change.SAME, ratio, "their ranges overlap")
    change = Change.HIGHER if second.median > first.median else Change.LOWER
    return Verdict(change, ratio, "their ranges do not overlap")


def _cost(task: Mapping[str, Any]) -> float:
    return float(task["weight"] * (task["after_ms"] or 0.0))


def _kind(first: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], str]:
    """How a task relates to the first version."""
    workloads = {task["workload_key"] for task in first["tasks"]}
    clusters = {task["cluster"] for task in first["tasks"]}

    def kind(task: Mapping[str, Any]) -> str:
        if task["workload_key"] in workloads:
            return "shared"
        return "sibling" if task["cluster"] in clusters else "new"

    return kind


def _task_change(first: Mapping[str, Any], second: Mapping[str, Any]) -> TaskChange:
    kind = _kind(first)
    counts = Counter(kind(task) for task in second["tasks"])
    whole = sum(map(_cost, second["tasks"])) or 1.0
    costs = {name: sum(_cost(t) for t in second["tasks"] if kind(t) == name) for name in ("shared", "sibling", "new")}
    left = {task["workload_key"] for task in second["tasks"]}
    return TaskChange(
        shared=counts["shared"],
        sibling=counts["sibling"],
        new=counts["new"],
        gone=sum(task["workload_key"] not in left for task in first["tasks"]),
        shares={name: cost / whole for name, cost in costs.items()},
    )


def _costly(first: Mapping[str, Any], second: Mapping[str, Any], *, comparable: bool) -> tuple[CostlyTask, ...]:
    kind = _kind(first)
    before = {task["workload_key"]: _cost(task) for task in first["tasks"] if task["after_ms"] is not None}
    whole = sum(map(_cost, second["tasks"])) or 1.0
    return tuple(
        CostlyTask(
            op=task["op"],
            workload_key=task["workload_key"],
            weight=task["weight"],
            grade=task["grade"],
            kind=kind(task),
            before_ms=before.get(task["workload_key"]) if comparable else None,
            now_ms=_cost(task),
            share=_cost(task) / whole,
        )
        for task in sorted(second["tasks"], key=_cost, reverse=True)[:N_COSTLY]
    )


def _notes(first: Version, second: Version, apart: str) -> list[str]:
    notes = []
    if apart:
        notes.append(f"latencies and seconds are not compared: {apart}")
    if (first.network, first.version) != (second.network, second.version):
        notes.append("these are two networks: the speed-up over untuned says what tuning did, the latency what each one costs")
    none = [version.label for version in (first, second) if version.trials.high == 0]
    notes += [f"{label} took no trial: what it uses was found by earlier runs" for label in none]
    few = [version.label for version in (first, second) if len(version.run_ids) == 1]
    if few:
        notes.append(f"one run of {' and of '.join(few)}: how much another seed would differ is not known")
    return notes
