"""What other processes take of the cores while something is measured."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import psutil

_BUSY = ("user", "nice", "system", "irq", "softirq", "steal")
_IDLE = ("idle", "iowait")
_MOST = 0.95


class OtherWork:
    """Adds up the processor time of everything but this process and its children, over the blocks that are watched."""

    def __init__(self) -> None:
        self._others_s = self._all_s = 0.0

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Count what is done while the block runs."""
        before = _seconds()
        yield
        busy_s, all_s, own_s = (now - then for now, then in zip(_seconds(), before, strict=True))
        self._others_s += max(0.0, busy_s - own_s)
        self._all_s += all_s

    @property
    def share(self) -> float:
        """Of the time of the cores that this process may use; 0 when nothing was watched."""
        return min(_MOST, self._others_s / self._all_s) if self._all_s > 0 else 0.0

    @property
    def slowed(self) -> float:
        """By what factor a program that uses all cores may be slower for it, at least 1."""
        return 1.0 / (1.0 - self.share)


def _seconds() -> tuple[float, float, float]:
    """Busy and all seconds of the cores, and those of this process with its children, ended ones included."""
    times = psutil.cpu_times(percpu=True)
    usable = [t for cpu, t in enumerate(times) if cpu in _affinity(len(times))]
    busy_s, idle_s = (sum(getattr(t, name, 0.0) for t in usable for name in names) for names in (_BUSY, _IDLE))
    this, own_s = psutil.Process(), 0.0
    for process in (this, *this.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            spent = process.cpu_times()
            own_s += spent.user + spent.system + spent.children_user + spent.children_system
    return busy_s, busy_s + idle_s, own_s


def _affinity(n_cpus: int) -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(n_cpus))
