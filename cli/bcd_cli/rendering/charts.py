"""Charts as SVG text that stands in a page: no script, no font, no file of its own; colours come from the page's style."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH = 720
_LEFT, _RIGHT = 190, 70
_ROW = 30
_CURVE_HEIGHT = 260
_MOST_TICKS = 5


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar.

    Attributes:
        series: Index of the colour.
        low: Where the line of its spread begins; None draws none. Likewise `high`.
        text: What stands at its end.
    """

    label: str
    value: float
    series: int
    text: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """One step curve: points by x."""

    label: str
    points: Sequence[tuple[float, float]]
    series: int


def bar_chart(title: str, bars: Sequence[Bar], unit: str) -> str:
    """Horizontal bars from zero, each with its spread."""
    largest = max([bar.value for bar in bars] + [bar.high or 0.0 for bar in bars], default=0.0) or 1.0
    ticks = _ticks(largest)
    scale = (_WIDTH - _LEFT - _RIGHT) / max(ticks[-1], largest)
    height = _ROW * len(bars) + 54
    parts = [_grid(_LEFT + tick * scale, height - 44, tick) for tick in ticks]
    for row, bar in enumerate(bars):
        top, middle = _ROW * row + 6, _ROW * row + 15
        parts.append(_text(_LEFT - 8, middle + 4, bar.label, "end"))
        parts.append(
            f'<rect class="s{bar.series}" x="{_LEFT}" y="{top}" width="{_number(bar.value * scale)}" height="{_ROW - 12}"/>'
        )
        if bar.low is not None and bar.high is not None:
            ends = (_LEFT + bar.low * scale, _LEFT + bar.high * scale)
            parts.append(_spread(ends, middle))
        parts.append(_text(_LEFT + max(bar.value, bar.high or 0.0) * scale + 6, middle + 4, bar.text, "start"))
    parts.append(_text(_LEFT, height - 6, unit, "start"))
    return _svg(title, [f"{bar.label}: {bar.text}" for bar in bars], height, parts)


def line_chart(title: str, lines: Sequence[Line], x_unit: str, y_unit: str) -> str:
    """Step curves over one another: a value holds until a better one is found."""
    points = [point for line in lines for point in line.points]
    x_ticks, y_ticks = (_ticks(max((point[axis] for point in points), default=1.0)) for axis in (0, 1))
    x_scale, y_scale = (_WIDTH - 60 - _RIGHT) / x_ticks[-1], (_CURVE_HEIGHT - 60) / y_ticks[-1]
    bottom = _CURVE_HEIGHT - 40
    parts = [_grid(60 + tick * x_scale, bottom, tick) for tick in x_ticks]
    for tick in y_ticks:
        y = bottom - tick * y_scale
        parts.append(f'<line class="grid" x1="60" x2="{_WIDTH - _RIGHT}" y1="{_number(y)}" y2="{_number(y)}"/>')
        parts.append(_text(54, y + 4, f"{tick:g}", "end"))
    for line in lines:
        places = [(60 + x * x_scale, bottom - y * y_scale) for x, y in line.points]
        parts.append(f'<path class="l{line.series}" d="{_steps(places)}"/>')
    parts += [_text(60, 14, y_unit, "start"), _text(_WIDTH - _RIGHT, bottom + 34, x_unit, "end")]
    described = [f"{line.label}: from {line.points[0][1]:.4g} to {line.points[-1][1]:.4g}" for line in lines if line.points]
    return _svg(title, described, _CURVE_HEIGHT, parts)


def _svg(title: str, lines: Sequence[str], height: int, parts: Sequence[str]) -> str:
    described = escape("; ".join(lines))
    return (
        f'<svg role="img" viewBox="0 0 {_WIDTH} {height}" aria-label="{escape(title)}. {described}">'
        f"<title>{escape(title)}</title><desc>{described}</desc>{''.join(parts)}</svg>"
    )


def _steps(places: Sequence[tuple[float, float]]) -> str:
    if not places:
        return ""
    moves = [f"M{_number(places[0][0])} {_number(places[0][1])}"]
    moves += [f"H{_number(x)} V{_number(y)}" for x, y in places[1:]]
    return " ".join(moves)


def _spread(ends: tuple[float, float], y: float) -> str:
    first, last = map(_number, ends)
    marks = "".join(f'<line class="spread" x1="{x}" x2="{x}" y1="{y - 5}" y2="{y + 5}"/>' for x in (first, last))
    return f'<line class="spread" x1="{first}" x2="{last}" y1="{y}" y2="{y}"/>{marks}'


def _grid(x: float, bottom: float, tick: float) -> str:
    line = f'<line class="grid" x1="{_number(x)}" x2="{_number(x)}" y1="0" y2="{bottom}"/>'
    return line + _text(x, bottom + 16, f"{tick:g}", "middle")


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{_number(x)}" y="{_number(y)}" text-anchor="{anchor}">{escape(text)}</text>'


def _ticks(largest: float) -> list[float]:
    """Round numbers from zero to at least the largest."""
    if not (largest > 0 and math.isfinite(largest)):
        return [0.0, 1.0]
    rough = largest / _MOST_TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough)
    return [round(step * number, 10) for number in range(math.ceil(largest / step) + 1)]


def _number(value: float) -> str:
    return f"{value:.1f}"
