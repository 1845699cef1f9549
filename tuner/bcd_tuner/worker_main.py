"""What a worker process runs: it answers calls on a pipe until its parent goes away.

The parent's own main module is not imported again (as multiprocessing would), so scripts need no `__main__` guard.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
_OOM_SCORE = 500


@dataclass(frozen=True, slots=True)
class Reply:
    """What a call came to.

    Attributes:
        value: What the function returned; None after an error.
        error: One line for a failed call; empty when it succeeded.
        rss_bytes: Memory that the worker holds after the call.
    """

    value: Any
    error: str
    rss_bytes: int


def main(descriptor: int, parent: int, memory_limit_bytes: int, preload: str) -> None:
    """Serves calls.

    Args:
        descriptor: The inherited pipe.
        parent: Process id that must be this process's parent.
        memory_limit_bytes: Data that calls may allocate beside what the start took; 0 is no limit.
        preload: Kind of target whose intrinsics are imported before the first call; empty imports nothing.
    """
    _die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pipe = Connection(descriptor)
    if preload:
        from bcd_tuner import worker_jobs

        worker_jobs.preload(preload)
    _limit_memory(memory_limit_bytes)
    pipe.send(Reply(os.getpid(), "", rss_bytes()))
    with contextlib.suppress(EOFError):
        while True:
            pipe.send(_answer(*pipe.recv()))


def rss_bytes() -> int:
    """Resident memory of this process; 0 where it cannot be told."""
    with contextlib.suppress(OSError, ValueError):
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    return 0


def _answer(function: Any, args: tuple[Any, ...]) -> Reply:
    try:
        return Reply(function(*args), "", rss_bytes())
    except Exception as error:  # noqa: BLE001 -- whatever a candidate does, it costs that candidate only
        lines = str(error).strip().splitlines()
        return Reply(None, f"{type(error).__name__}: {lines[-1] if lines else ''}"[:500], rss_bytes())


def _die_with(parent: int) -> None:
    """Asks the kernel to kill this process when its parent ends, however that happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def _limit_memory(limit_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE), encoding="ascii")
    if limit_bytes:
        used = _data_bytes()
        resource.setrlimit(resource.RLIMIT_DATA, (used + limit_bytes, used + limit_bytes))


def _data_bytes() -> int:
    """What counts against RLIMIT_DATA already."""
    with contextlib.suppress(OSError, ValueError):
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
