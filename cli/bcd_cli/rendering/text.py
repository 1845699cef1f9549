"""Numbers as people read them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence

from bcd_registry.model import Grade

GRADE_ORDER = tuple(Grade)
UNKNOWN = "-"


def milliseconds(value: float | None) -> str:
    """Three significant digits or so, never an exponent: `0.0123`, `1.23`, `123`."""
    if value is None:
        return UNKNOWN
    if value == 0:
        return "0"
    digits = 4 if value < 0.1 else 3 if value < 1 else 2 if value < 100 else 0
    return f"{value:.{digits}f}"


def duration(seconds: float | None) -> str:
    """`4.2 s`, `1 min 05 s`, `2 h 03 min`."""
    if seconds is None:
        return UNKNOWN
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def seconds(value: float | None) -> str:
    """Seconds to a tenth, for a column."""
    return UNKNOWN if value is None else f"{value:.1f}"


def clock(seconds: float) -> str:
    """`0:05`, `12:34`, `1:02:03`."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def grades(found: Iterable[Grade]) -> str:
    """One grade by its name; several with their counts, best first: `exact:3 cold:1`."""
    counts = Counter(found)
    if len(counts) == 1:
        return str(next(iter(counts)))
    return " ".join(f"{grade}:{counts[grade]}" for grade in GRADE_ORDER if counts[grade])


def ratio(before: float | None, after: float | None) -> str:
    """`3.8x`, or a dash."""
    return f"{before / after:.2f}x" if before and after else UNKNOWN


def count(number: int, noun: str) -> str:
    """`1 task`, `2 tasks`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def size(n_bytes: int) -> str:
    """`512 B`, `24.0 KiB`, `3.4 MiB`."""
    if n_bytes < 1024:
        return f"{n_bytes} B"
    value, units = n_bytes / 1024, iter(("KiB", "MiB", "GiB"))
    unit = next(units)
    while value >= 1023.95 and (larger := next(units, None)):
        value, unit = value / 1024, larger
    return f"{value:.1f} {unit}"


def moment(unix_s: float) -> str:
    """Local date and minute."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(unix_s)) if unix_s else UNKNOWN


def short(key: str) -> str:
    """The first digits of a key, enough to ask for it."""
    return key[:12]


def extents(values: Sequence[int]) -> str:
    """`1x64x56x56`."""
    return "x".join(str(value) for value in values)
