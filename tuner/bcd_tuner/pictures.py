"""A run as PNGs. matplotlib is imported here only, without a display and without its global state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from bcd_tuner.report import CurvePoint, TaskReport, TuneReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CURVE_PNG, TASKS_PNG, TIME_PNG = "curve.png", "tasks.png", "time.png"
"""What the pictures of a run are called beside each other."""

_SIZE_INCHES = (9.0, 3.6)
_COLORS = ("#1b6ca8", "#c8553d", "#5b8e7d", "#8d6a9f")
_GREY = "#777777"
_MOST_STEPS = 10
_LABEL_CHARS = 28


def save_pictures(report: TuneReport, folder: Path, name: str) -> dict[str, Path]:
    """Draw what a run has: its curve, the latency that each task saved, where the time went.

    Args:
        folder: Made when it is not there.
        name: What the files' names begin with.

    Returns:
        Paths by `CURVE_PNG`, `TASKS_PNG` and `TIME_PNG`; what there is nothing to draw of is not in it.
    """
    stem = folder / name
    pictures = {}
    if len(report.curve) > 1:
        pictures[CURVE_PNG] = save_tuning_curves(report, stem.with_name(f"{name}.png"))
    if any(_saved_ms(task) is not None for task in report.tasks):
        pictures[TASKS_PNG] = save_waterfall(report, stem.with_name(f"{name}-{TASKS_PNG}"))
    if report.time_s.total > 0:
        pictures[TIME_PNG] = save_time_split(report, stem.with_name(f"{name}-{TIME_PNG}"))
    return pictures


def save_tuning_curves(report: TuneReport, path: Path, *, others: Mapping[str, Sequence[CurvePoint]] | None = None) -> Path:
    """Draw estimated latency against seconds and against trials.

    Args:
        report: The run that the picture is of.
        path: Where the PNG goes; its folder is made.
        others: Curves of other runs by label, drawn behind for comparison.

    Returns:
        `path`.
    """
    label = f"{report.network} {report.version}"
    figure = _figure(_SIZE_INCHES)
    by_seconds, by_trials = figure.subplots(1, 2, sharey=True)
    for axes, unit in ((by_seconds, "seconds"), (by_trials, "trials")):
        for index, (name, curve) in enumerate((others or {}).items(), start=1):
            _draw(axes, curve, unit, name, _COLORS[index % len(_COLORS)])
        _draw(axes, report.curve, unit, label, _COLORS[0])
        _untuned_line(axes, report.latency_ms.estimated_untuned)
        axes.set_xlabel(f"{unit} of tuning" if unit == "seconds" else unit)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.grid(visible=True, alpha=0.3)
    by_seconds.set_ylabel("estimated latency, ms")
    by_trials.legend(loc="best", fontsize="small", frameon=False)
    figure.suptitle(f"{label}: weighted sum of the tasks' best latencies", fontsize="medium")
    return _save(figure, path)


def save_waterfall(report: TuneReport, path: Path) -> Path:
    """Draw how the tasks' savings lead from the untuned latency to the tuned one (estimated); returns `path`.

    Tasks of which one latency is not known are left out of all bars.
    """
    known = [(task, saved) for task in report.tasks if (saved := _saved_ms(task)) is not None]
    known.sort(key=lambda found: -found[1])
    total = sum(task.weight * (task.before_ms or 0.0) for task, _ in known)
    steps = [(_short(task.op), saved) for task, saved in known[:_MOST_STEPS]]
    if rest := known[_MOST_STEPS:]:
        steps.append((f"{len(rest)} more tasks", sum(saved for _, saved in rest)))
    figure = _figure((9.0, 1.6 + 0.28 * len(steps)))
    axes = figure.subplots()
    axes.barh(0, total, color=_GREY)
    left = total
    for row, (_, saved) in enumerate(steps, start=1):
        left -= saved
        axes.barh(row, abs(saved), left=min(left, left + saved), color=_COLORS[2] if saved >= 0 else _COLORS[1])
        axes.annotate(
            f" -{saved:.3g}" if saved >= 0 else f" +{-saved:.3g}", (max(left, left + saved), row), va="center", size=8
        )
    axes.barh(len(steps) + 1, left, color=_COLORS[0])
    axes.set_yticks(range(len(steps) + 2), ["untuned", *(label for label, _ in steps), "now"], fontsize="small")
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel("estimated latency, ms: each task's own latency times its calls")
    axes.grid(visible=True, axis="x", alpha=0.3)
    figure.suptitle(f"{report.network} {report.version}: what each task saved", fontsize="medium")
    return _save(figure, path)


def save_time_split(report: TuneReport, path: Path) -> Path:
    """Draw where the seconds of tuning went; returns `path`."""
    figure = _figure((9.0, 1.7))
    axes = figure.subplots()
    left = 0.0
    for color, (part, seconds) in zip(_COLORS, asdict(report.time_s).items(), strict=True):
        axes.barh(0, seconds, left=left, color=color, label=f"{part} {seconds:.1f} s")
        left += seconds
    axes.set_yticks([])
    axes.set_xlim(0, left)
    axes.set_xlabel("seconds of tuning")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.45), ncols=len(_COLORS), fontsize="small", frameon=False)
    figure.suptitle(f"{report.network} {report.version}: {report.trials} trials", fontsize="medium")
    return _save(figure, path)


def _figure(size_inches: tuple[float, float]) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size_inches, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    return path


def _saved_ms(task: TaskReport) -> float | None:
    if task.before_ms is None or task.after_ms is None:
        return None
    return task.weight * (task.before_ms - task.after_ms)


def _short(label: str) -> str:
    return label if len(label) <= _LABEL_CHARS else f"{label[: _LABEL_CHARS - 1]}…"


def _draw(axes: Axes, curve: Sequence[CurvePoint], unit: str, label: str, color: str) -> None:
    """A step curve: a latency holds until a better one is measured. A run with no trial is one point."""
    x = [point.seconds if unit == "seconds" else point.trials for point in curve]
    y = [point.estimated_ms for point in curve]
    marker = "o" if len(curve) == 1 else None
    axes.step(x, y, where="post", label=label, color=color, marker=marker, linewidth=1.8)


def _untuned_line(axes: Axes, estimated_untuned_ms: float | None) -> None:
    if estimated_untuned_ms is not None:
        axes.axhline(estimated_untuned_ms, color=_GREY, linestyle="--", linewidth=1, label="untuned (estimated)")
