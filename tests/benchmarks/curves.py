"""The picture of BENCHMARKS.md. matplotlib without a display and without its global state."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .compare import Table
from .results import Result

_COLORS = {"a": "#999999", "b": "#c8553d", "c": "#8d6a9f", "d": "#1b6ca8", "e": "#5b8e7d"}
_NAMES = {
    "a": "(a) tune_relax",
    "b": "(b) evolutionary, warm workers",
    "c": "(c) ours, cold",
    "d": "(d) ours, warm",
    "e": "(e) zero trials",
}
_FIRST_S = 0.5
"""Where the time axis begins: it is logarithmic."""


def draw(results: Sequence[Result], path: Path) -> Path:
    """Latency against seconds, a panel for each network; every seed is a line."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    table = Table(results)
    pairs = table.pairs()
    n_columns = min(3, len(pairs))
    n_rows = -(-len(pairs) // n_columns)
    figure = Figure(figsize=(4.2 * n_columns, 3.2 * n_rows), layout="constrained")
    FigureCanvasAgg(figure)
    panels = list(figure.subplots(n_rows, n_columns, squeeze=False).flat)
    for axes, pair in zip(panels, pairs, strict=False):
        _panel(axes, pair, [r for mode in _NAMES for r in table.over(pair, mode)])
    for axes in panels[len(pairs) :]:
        axes.set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    return path


def _panel(axes: Any, pair: str, results: Sequence[Result]) -> None:
    named: set[str] = set()
    for result in results:
        look = {"color": _COLORS[result.mode], "label": None if result.mode in named else _NAMES[result.mode]}
        named.add(result.mode)
        x, y = [max(seconds, _FIRST_S) for seconds, _, _ in result.curve], [ms for _, _, ms in result.curve]
        if result.trials == 0:
            axes.plot(x[-1:], y[-1:], "o", **look)
        else:
            axes.step(x, y, where="post", linewidth=1.4, **look)
    axes.set(xscale="log", yscale="log", title=pair, xlabel="seconds of tuning", ylabel="estimated latency, ms")
    axes.grid(visible=True, which="both", alpha=0.2)
    axes.legend(fontsize="x-small", frameon=False)
