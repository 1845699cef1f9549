"""Tasks folded into one row for each cluster, small clusters folded into one more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from bcd_cli.rendering.text import count
from bcd_registry.model import Grade
from bcd_tuner.report import TaskPlan, TaskReport

MAX_ROWS = 12
SHARE = 0.97
"""Rows are shown until they make up this share of the untuned time and of the tuning time, at most MAX_ROWS of them."""


@dataclass(frozen=True, slots=True)
class Row:
    """One task, or several added up.

    Attributes:
        cluster: The signature that they share; empty where it is not one.
        seconds: Tuning seconds, spent or expected; None when one of them is not known.
        before_ms: Sum of latencies times weights, untuned; None when one of them is not known.
        after_ms: The same as it is now, or for a plan as the registry knows it.
    """

    label: str
    cluster: str
    grades: tuple[Grade, ...]
    trials: int
    seconds: float | None
    before_ms: float | None
    after_ms: float | None

    @property
    def signature(self) -> str:
        """Enough of the cluster's signature to tell it from one with the same label."""
        return self.cluster[:4]

    @property
    def n_tasks(self) -> int:
        """Tasks in the row."""
        return len(self.grades)


def row_of_report(task: TaskReport) -> Row:
    """What was spent and reached."""
    before, after = _weighted(task.before_ms, task.weight), _weighted(task.after_ms, task.weight)
    return Row(task.op, task.cluster, (task.grade,), task.trials, task.seconds, before, after)


def row_of_plan(task: TaskPlan) -> Row:
    """What is expected."""
    return Row(task.op, task.cluster, (task.grade,), task.trials, task.seconds, None, _weighted(task.known_ms, task.weight))


def add_up(rows: Sequence[Row], label: str) -> Row:
    """All rows as one."""
    return Row(
        label=label,
        cluster=rows[0].cluster if len({row.cluster for row in rows}) == 1 else "",
        grades=tuple(grade for row in rows for grade in row.grades),
        trials=sum(row.trials for row in rows),
        seconds=_sum(row.seconds for row in rows),
        before_ms=_sum(row.before_ms for row in rows),
        after_ms=_sum(row.after_ms for row in rows),
    )


def by_cluster(rows: Sequence[Row]) -> list[Row]:
    """One row for each cluster, the costliest first."""
    members: dict[str, list[Row]] = {}
    for row in rows:
        members.setdefault(row.cluster, []).append(row)
    clusters = [add_up(group, group[0].label) for group in members.values()]
    return sorted(clusters, key=lambda row: (-(row.before_ms or 0.0), -row.trials, -(row.after_ms or 0.0), row.label))


def fold(clusters: Sequence[Row], *, max_rows: int = MAX_ROWS, share: float = SHARE) -> list[Row]:
    """The rows that matter, in their order, and the small rest as one: `N more clusters`."""
    needed = {row.cluster for quantity in (_latency, _effort) for row in _largest(clusters, quantity, share)}
    shown = [row for row in clusters if row.cluster in needed][:max_rows]
    kept = {row.cluster for row in shown}
    rest = [row for row in clusters if row.cluster not in kept]
    if len(rest) < 2:
        return list(clusters)
    return [*shown, replace(add_up(rest, f"{count(len(rest), 'more cluster')}"), cluster="")]


def _latency(row: Row) -> float:
    return max(row.before_ms or 0.0, row.after_ms or 0.0)


def _effort(row: Row) -> float:
    return row.seconds or float(row.trials)


def _largest(rows: Sequence[Row], quantity: Callable[[Row], float], share: float) -> list[Row]:
    """The fewest rows that make up the share of the quantity."""
    whole, so_far, chosen = sum(map(quantity, rows)), 0.0, []
    for row in sorted(rows, key=quantity, reverse=True):
        if so_far >= share * whole:
            break
        chosen.append(row)
        so_far += quantity(row)
    return chosen


def _weighted(latency_ms: float | None, weight: int) -> float | None:
    return None if latency_ms is None else latency_ms * weight


def _sum(values: Iterable[float | None]) -> float | None:
    known = list(values)
    return None if None in known else sum(value for value in known if value is not None)
