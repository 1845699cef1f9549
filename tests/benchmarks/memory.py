"""Memory of this process and its children, watched from a thread."""

from __future__ import annotations

import contextlib
import threading
from types import TracebackType

import psutil

_INTERVAL_S = 0.5


class PeakMemory:
    """The largest sum of resident memory while the block runs.

    Pages that processes share count in each of them, so the true figure is lower.
    """

    def __init__(self, interval_s: float = _INTERVAL_S) -> None:
        self.peak_bytes = 0
        self._interval_s = interval_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peak-memory", daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        this = psutil.Process()
        while True:
            self.peak_bytes = max(self.peak_bytes, tree_bytes(this))
            if self._over.wait(self._interval_s):
                return


def tree_bytes(process: psutil.Process) -> int:
    """Resident memory of a process and all of its children, now."""
    total = 0
    for member in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            total += member.memory_info().rss
    return total
