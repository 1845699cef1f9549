"""Two versions side by side for people."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bcd_cli.rendering.tables import plain_table
from bcd_cli.rendering.text import UNKNOWN, count, duration, milliseconds, moment
from bcd_tuner.comparison import Change, Comparison, Spread, Verdict, Version

_MOST_TIMES = 100.0
_STYLES = {Change.LOWER: "green", Change.HIGHER: "bold red", Change.SAME: "", Change.UNKNOWN: "yellow"}
_REVERSED = {Change.LOWER: "bold red", Change.HIGHER: "green", Change.SAME: "", Change.UNKNOWN: "yellow"}


def render_comparison(found: Comparison, page: Path | None) -> RenderableType:
    """Everything in 80 columns, but paths and URLs, which are not broken: print it with `crop=False`.

    Args:
        page: Where its page was written, if it was.
    """
    parts: list[RenderableType] = [
        *_headings(found),
        "",
        _figures(found),
        "",
        *_tasks(found),
        "",
        _costly(found),
        *_notes(found),
    ]
    for name, where in (("page:   ", page), ("MLflow: ", found.mlflow_url)):
        if where:
            parts.append(Text(f"{name} {where}", no_wrap=True, overflow="ignore"))
    return Group(*parts)


def verdict_text(verdict: Verdict) -> str:
    """`12% lower`, `3.5 times as high`, `no difference seen`, `not compared`; only `higher` after next to nothing."""
    if verdict.change in (Change.SAME, Change.UNKNOWN) or verdict.ratio is None or verdict.ratio >= _MOST_TIMES:
        return str(verdict.change)
    if verdict.ratio >= 2.0:
        return f"{verdict.ratio:.1f} times as high"
    return f"{abs(verdict.ratio - 1.0) * 100:.1f}% {verdict.change}"


def between(spread: Spread | None, unit: str = "") -> str:
    """`4.10 (4.00 - 4.40)`; a figure that has no spread stands alone."""
    if spread is None:
        return UNKNOWN
    shown = [milliseconds(value) for value in (spread.median, spread.low, spread.high)]
    if unit:
        shown = [f"{value:.2f}{unit}" for value in (spread.median, spread.low, spread.high)]
    return shown[0] if spread.low == spread.high else f"{shown[0]} ({shown[1]} - {shown[2]})"


def whole(spread: Spread) -> str:
    """A count, or the range of it."""
    return (
        f"{spread.median:.0f}" if spread.low == spread.high else f"{spread.median:.0f} ({spread.low:.0f} - {spread.high:.0f})"
    )


def period(spread: Spread) -> str:
    """A duration, or the range of it."""
    if spread.low == spread.high:
        return duration(spread.median)
    return f"{duration(spread.median)} ({duration(spread.low)} - {duration(spread.high)})"


def _headings(found: Comparison) -> Iterator[Text]:
    for version in (found.first, found.second):
        text = Text(version.label, style="bold")
        runs = f"{count(len(version.run_ids), 'run')}, {moment(version.created_at)}, {version.run_ids[0][:8]}"
        text.append(f": {version.title}, {count(version.n_tasks, 'task')}; {runs}", style="not bold")
        yield text


def _figures(found: Comparison) -> Table:
    table = plain_table(expand=False)
    table.add_column("")
    for title in (found.first.label, found.second.label):
        table.add_column(title, justify="right", overflow="fold")
    table.add_column("")
    pairs = [(name, between(_of(found.first, name)), between(_of(found.second, name))) for name in ("untuned", "onnxruntime")]
    table.add_row("end to end, ms", between(found.first.tuned), between(found.second.tuned), _cell(found.latency, _STYLES))
    for name, first, second in pairs:
        if (first, second) != (UNKNOWN, UNKNOWN):
            table.add_row(f"  {name}", first, second, "")
    speed = (between(found.first.speedup, "x"), between(found.second.speedup, "x"))
    table.add_row("speed-up", *speed, _cell(found.speedup, _REVERSED))
    table.add_row("tuning", period(found.first.tuning_s), period(found.second.tuning_s), _cell(found.tuning_s, _STYLES))
    table.add_row("trials", whole(found.first.trials), whole(found.second.trials), _cell(found.trials, _STYLES))
    table.add_row("grades", _grades(found.first), _grades(found.second), "")
    return table


def _of(version: Version, name: str) -> Spread | None:
    spread: Spread | None = getattr(version, name)
    return spread


def _cell(verdict: Verdict, styles: dict[Change, str]) -> Text:
    return Text(verdict_text(verdict), style=styles[verdict.change])


def _grades(version: Version) -> str:
    return "\n".join(f"{n} {grade}" for grade, n in version.grades.items())


def _tasks(found: Comparison) -> Iterator[Text]:
    tasks, shares = found.tasks, found.tasks.shares
    yield Text(f"the {count(found.second.n_tasks, 'task')} of {found.second.label}, with their share of its time (estimated)")
    for name, number, meaning in (
        ("shared", tasks.shared, f"{found.first.label} has them too"),
        ("sibling", tasks.sibling, f"in a cluster of {found.first.label}, with other extents"),
        ("new", tasks.new, "in no such cluster"),
    ):
        yield Text(f"{number:5} {name:8} {100 * shares[name]:3.0f}%  {meaning}")
    if tasks.gone:
        yield Text(f"  and {count(tasks.gone, 'task')} of {found.first.label} are gone")


def _costly(found: Comparison) -> Table:
    table = plain_table()
    table.add_column(f"what costs most in {found.second.label}", ratio=1, overflow="ellipsis", no_wrap=True)
    for title in ("calls", "grade", "", f"ms in\n{found.first.label[:12]}", f"ms in\n{found.second.label[:12]}", "share"):
        table.add_column(title, justify="left" if title in ("grade", "") else "right", no_wrap=True)
    for task in found.costly:
        cells = (milliseconds(task.before_ms), milliseconds(task.now_ms), f"{100 * task.share:.0f}%")
        table.add_row(task.op, str(task.weight), task.grade, task.kind, *cells)
    return table


def _notes(found: Comparison) -> Iterator[RenderableType]:
    if found.notes:
        yield ""
    for note in found.notes:
        yield Text(f"note: {note}", style="yellow")
