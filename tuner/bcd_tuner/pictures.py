"""Tuning curves as a PNG. matplotlib is imported here only, without a display and without its global state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bcd_tuner.report import CurvePoint, TuneReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SIZE_INCHES = (9.0, 3.6)
_COLORS = ("#1b6ca8", "#c8553d", "#5b8e7d", "#8d6a9f")


def save_tuning_curves(report: TuneReport, path: Path, *, others: Mapping[str, Sequence[CurvePoint]] | None = None) -> Path:
    """Draw estimated latency against seconds and against trials.

    Args:
        report: The run that the picture is of.
        path: Where the PNG goes; its folder is made.
        others: Curves of other runs by label, drawn behind for comparison.

    Returns:
        `path`.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    label = f"{report.network} {report.version}"
    figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
    FigureCanvasAgg(figure)
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
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    return path


def _draw(axes: Axes, curve: Sequence[CurvePoint], unit: str, label: str, color: str) -> None:
    """A step curve: a latency holds until a better one is measured. A run with no trial is one point."""
    x = [point.seconds if unit == "seconds" else point.trials for point in curve]
    y = [point.estimated_ms for point in curve]
    marker = "o" if len(curve) == 1 else None
    axes.step(x, y, where="post", label=label, color=color, marker=marker, linewidth=1.8)


def _untuned_line(axes: Axes, estimated_untuned_ms: float | None) -> None:
    if estimated_untuned_ms is not None:
        axes.axhline(estimated_untuned_ms, color="#777777", linestyle="--", linewidth=1, label="untuned (estimated)")
