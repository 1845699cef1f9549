"""Shows how a run goes on: one live picture on a terminal, plain and few lines elsewhere."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from bcd_cli.rendering.text import clock, count, milliseconds
from bcd_tuner.report import ProgressEvent, ProgressSink

PLAIN_EVERY_S = 10.0
_REFRESH_A_SECOND = 4


@contextlib.contextmanager
def open_progress(console: Console) -> Iterator[ProgressSink]:
    """A sink that draws on the console until the block ends."""
    if not console.is_terminal or console.is_dumb_terminal:
        yield PlainProgress(console)
        return
    live_progress = LiveProgress(console, time.monotonic)
    with Live(
        live_progress,
        console=console,
        transient=True,
        redirect_stdout=False,
        refresh_per_second=_REFRESH_A_SECOND,
    ):
        yield live_progress


class PlainProgress:
    """Lines for a log: each message, and while nothing is said one line in PLAIN_EVERY_S seconds of the run."""

    def __init__(self, console: Console, every_s: float = PLAIN_EVERY_S) -> None:
        """Print on the console; no line is broken."""
        self._console = console
        self._every_s = every_s
        self._next_s = 0.0
        self._phase = ""

    def __call__(self, event: ProgressEvent) -> None:
        """Print the event if it says something new."""
        due = event.elapsed_s >= self._next_s
        if not (event.message or due or event.phase != self._phase):
            return
        self._phase = event.phase
        self._next_s = event.elapsed_s + self._every_s
        self._console.print(_plain_line(event), soft_wrap=True, markup=False)


class LiveProgress:
    """The latest event as two lines that are drawn anew, with finished phases as lines above. Threads may share it."""

    def __init__(self, console: Console, now: Callable[[], float]) -> None:
        """Print phases on the console.

        Args:
            now: Monotonic seconds; events carry the run's own time only when they come.
        """
        self._console = console
        self._now = now
        self._lock = threading.Lock()
        self._event = ProgressEvent("")
        self._seen_s = now()

    def __call__(self, event: ProgressEvent) -> None:
        """Take the event over; a message becomes a line that stays."""
        with self._lock:
            last = self._event
            kept = event if event.task or event.phase != last.phase else replace(event, task=last.task, best_ms=last.best_ms)
            self._event, self._seen_s = kept, self._now()
        if event.message:
            line = Text.assemble((f"{clock(event.elapsed_s):>7}  ", "dim"), (f"{event.phase:8}", "bold"), event.message)
            self._console.print(line, soft_wrap=True)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Two lines of the console's width."""
        with self._lock:
            event, waited_s = self._event, self._now() - self._seen_s
        if event.phase:
            yield _bar(event, waited_s)
            yield _task_line(event)


def _plain_line(event: ProgressEvent) -> str:
    words = [f"[{clock(event.elapsed_s):>7}] {event.phase}"]
    if event.message:
        words.append(event.message)
    if event.trials_planned and (event.phase == "tune" or not event.message):
        words.append(_numbers(event))
    return ": ".join(words)


def _numbers(event: ProgressEvent) -> str:
    parts = [f"{event.trials}/{count(event.trials_planned, 'trial')}"]
    if event.task:
        parts.append(f"{event.task} {milliseconds(event.best_ms)} ms")
    if event.estimated_ms is not None:
        parts.append(f"all tasks {milliseconds(event.estimated_ms)} ms (estimated)")
    if event.left_s is not None:
        parts.append(f"about {clock(event.left_s)} left")
    return ", ".join(parts)


def _bar(event: ProgressEvent, waited_s: float) -> Table:
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(width=7, justify="right", style="dim")
    grid.add_column(width=8, style="bold")
    grid.add_column(ratio=1)
    grid.add_column(no_wrap=True, justify="right")
    total = float(event.trials_planned) if event.trials_planned else None
    bar = ProgressBar(total=total, completed=event.trials, pulse=total is None)
    grid.add_row(clock(event.elapsed_s + waited_s), event.phase, bar, _counts(event, waited_s))
    return grid


def _counts(event: ProgressEvent, waited_s: float) -> str:
    if not event.trials_planned:
        return ""
    counts = f"{event.trials}/{count(event.trials_planned, 'trial')}"
    if event.left_s is None:
        return counts
    return f"{counts}, about {clock(max(0.0, event.left_s - waited_s))} left"


def _task_line(event: ProgressEvent) -> Table:
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(width=16)
    grid.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    grid.add_column(no_wrap=True, justify="right")
    best = "" if event.best_ms is None else f"{milliseconds(event.best_ms)} ms"
    whole = "" if event.estimated_ms is None else f"all tasks {milliseconds(event.estimated_ms)} ms (est.)"
    grid.add_row("", event.task, "   ".join(part for part in (best, whole) if part))
    return grid
