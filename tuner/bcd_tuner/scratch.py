"""A process's own temporary folder: removed at close, and by the next process if this one was killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

_PREFIX = "bcd-registry-"
_LOCK = "owner.lock"


class Scratch:
    """A folder that belongs to this process for as long as it holds the lock inside.

    The process id in the name alone would not do: ids are used again, and containers that share a temporary folder
    each have their own.
    """

    def __init__(self, parent: Path | None = None) -> None:
        parent = parent or Path(tempfile.gettempdir())
        remove_stale(parent)
        self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=parent))
        self._lock = FileLock(self.path / _LOCK)
        self._lock.acquire()

    def close(self) -> None:
        """Removes the folder; calling it again is free."""
        self._lock.release()
        shutil.rmtree(self.path, ignore_errors=True)


def remove_stale(parent: Path) -> None:
    """Removes folders of processes that are gone."""
    for folder in parent.glob(f"{_PREFIX}*-*"):
        owner = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdigit() and not psutil.pid_exists(int(owner)) and _is_unlocked(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _is_unlocked(folder: Path) -> bool:
    with contextlib.suppress(Timeout, OSError), FileLock(folder / _LOCK, timeout=0):
        return True
    return False


def measuring_lock(path: Path | None = None) -> FileLock:
    """The lock that one process of the host at a time holds while it measures.

    Args:
        path: Where the lock lies; by default a place that all processes of the host share, whatever their TMPDIR.
    """
    if path is None:
        shared = Path(os.sep, "tmp")
        path = (shared if shared.is_dir() else Path(tempfile.gettempdir())) / "bcd-registry-measuring.lock"
        if path.exists() and not os.access(path, os.W_OK):
            path = path.with_suffix(f".{os.getuid()}.lock")
    return FileLock(path, mode=0o666)
