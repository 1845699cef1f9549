"""Locks, and what changed between two, for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bcd_cli.rendering.tables import plain_table
from bcd_cli.rendering.text import count, milliseconds
from bcd_registry.lock import Lock, LockDifference, LockedNetwork, LockedTask

_SHORT = 8


def render_lock(lock: Lock, file: str, coverage: str) -> RenderableType:
    """What was written, and what it leaves untuned.

    Args:
        coverage: How much is published, in words.
    """
    heading = Text(f"{file}: {_title(lock.network)}, {coverage}", no_wrap=True, overflow="ignore")
    if not lock.untuned:
        return heading
    return Group(heading, "", _task_table("stays untuned", lock.untuned))


def render_difference(old: Lock, new: Lock, found: LockDifference) -> RenderableType:
    """Everything in 80 columns."""
    parts: list[RenderableType] = [Text(f"{_title(old.network)} -> {_title(new.network)}", style="bold")]
    parts += [Text(f"network: another {name}") for name in found.network if name not in ("name", "version")]
    parts += [Text(f"environment ({d.field_class}): {d.describe()}") for d in found.environment]
    for title, tasks in (("added", found.added), ("removed", found.removed)):
        if tasks:
            parts += ["", _task_table(title, tasks)]
    for title, pairs in (("another record", found.records), ("measured again", found.latencies)):
        if pairs:
            parts += ["", _pair_table(title, pairs)]
    parts += [Text(f"{a.op} {a.workload[:_SHORT]}: called {a.weight} -> {b.weight} times") for a, b in found.weights]
    return Group(*parts, "", Text(", ".join(_counts(found))))


def _counts(found: LockDifference) -> Iterator[str]:
    for number, what in (
        (len(found.added), "added"),
        (len(found.removed), "removed"),
        (len(found.records), "with another record"),
        (len(found.latencies), "measured again"),
    ):
        if number:
            yield f"{number} {what}"
    yield f"{count(found.n_same, 'task')} the same"


def _title(network: LockedNetwork) -> str:
    return f"{network.name} {network.version}".strip()


def _task_table(title: str, tasks: Sequence[LockedTask]) -> Table:
    table = _table(title)
    table.add_column("calls", justify="right")
    table.add_column("grade", no_wrap=True)
    table.add_column("ms", justify="right", no_wrap=True)
    for task in tasks:
        table.add_row(task.op, task.workload[:_SHORT], str(task.weight), str(task.grade), milliseconds(task.median_ms))
    return table


def _pair_table(title: str, pairs: Sequence[tuple[LockedTask, LockedTask]]) -> Table:
    table = _table(title)
    table.add_column("record", no_wrap=True)
    table.add_column("ms", justify="right", no_wrap=True)
    for old, new in pairs:
        latency = f"{milliseconds(old.median_ms)} -> {milliseconds(new.median_ms)}"
        table.add_row(new.op, new.workload[:_SHORT], f"{_record(old)} -> {_record(new)}", latency)
    return table


def _table(title: str) -> Table:
    table = plain_table()
    table.add_column(title, ratio=1, overflow="ellipsis", no_wrap=True)
    table.add_column("workload", no_wrap=True)
    return table


def _record(task: LockedTask) -> str:
    return task.record[:_SHORT] if task.record else "untuned"
