"""One worker process as its parent sees it: started once, called many times, replaced when it dies or grows."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from bcd_registry.errors import MeasureError
from bcd_tuner.worker_main import Reply

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from bcd_tuner.worker_main import main; main(*json.loads(sys.argv[2]))"
)
_START_TIMEOUT_S = 180.0
_START_ATTEMPTS = 2
_START_HINT = "run `bcd-registry doctor`, which checks the installation"
_LOG_TAIL_BYTES = 2000


class JobError(MeasureError):
    """A call that failed, crashed, hung or ate too much memory; the worker is ready for the next."""


class WorkerStartError(MeasureError):
    """A worker that cannot start at all: no later call can succeed either."""


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """How workers of one kind are run.

    Attributes:
        preload: Kind of target whose intrinsics a worker imports before its first call.
        threads: Threads of a program that runs in it.
        memory_limit_bytes: What calls may allocate; 0 is no limit.
        recycle_after: Calls after which the process is replaced, since compiling leaks.
        recycle_bytes: Resident memory above which it is replaced.
        log: File that takes what the worker prints.
        environment: Further environment variables.
    """

    preload: str
    threads: int
    memory_limit_bytes: int
    recycle_after: int
    recycle_bytes: int
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)


class WorkerProcess:
    """A process that runs one call at a time.

    `start` and `call` belong to one thread, which must live as long as the worker: the kernel kills the worker when
    the thread that started it ends. `kill` may come from any thread and unblocks a call in flight.
    """

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        self._ready = False
        self._calls = 0
        self._closed = threading.Event()
        self.n_started = 0

    @property
    def pid(self) -> int | None:
        """The process id, None when no process runs."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Starts the process unless one runs; does not wait until it is ready."""
        if self._process is not None or self._closed.is_set():
            return
        ours, theirs = Pipe()
        spec = self._spec
        arguments = [theirs.fileno(), os.getpid(), spec.memory_limit_bytes, spec.preload]
        with spec.log.open("wb") as log, theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT, json.dumps(sys.path), json.dumps(arguments)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "TVM_NUM_THREADS": str(spec.threads), "OPENBLAS_NUM_THREADS": "1", **spec.environment},
                process_group=0,
            )
        self._pipe, self._ready, self._calls = ours, False, 0
        self.n_started += 1
        if self._closed.is_set():  # killed while it started, when there was no process yet to kill
            _kill_group(self._process)

    def wait_ready(self) -> None:
        """Waits until the process has imported what it needs; one that died unused is replaced.

        Raises:
            WorkerStartError: It died on the way, twice, or took minutes; or the worker was killed for good.
        """
        if self._ready and self._process is not None and self._process.poll() is not None:
            self._end()
        last = JobError("")
        for _ in range(_START_ATTEMPTS):
            if self._closed.is_set():
                raise WorkerStartError("the worker pool is closed")
            self.start()
            if self._ready:
                return
            try:
                self._receive(time.monotonic() + _START_TIMEOUT_S)
                self._ready = True
            except JobError as error:
                last = error
        if not self._ready:
            raise WorkerStartError(f"a worker process cannot start: {last.message}", hint=_START_HINT) from last

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], timeout_s: float) -> Any:
        """Runs `function(*args)` in the process and returns its result.

        Raises:
            JobError: It raised, died or took longer than `timeout_s`; after the latter two a new process is starting.
            WorkerStartError: No process can be started.
        """
        self.wait_ready()
        reply = self._exchange((function, args), timeout_s)
        self._calls += 1
        if self._calls >= self._spec.recycle_after or reply.rss_bytes > self._spec.recycle_bytes:
            self._end()
            self.start()
        if reply.error:
            raise JobError(reply.error)
        return reply.value

    def kill(self) -> None:
        """Ends the process for good."""
        self._closed.set()
        process = self._process
        if process is not None:
            _kill_group(process)

    def _exchange(self, message: tuple[Any, ...], timeout_s: float) -> Reply:
        deadline = time.monotonic() + timeout_s
        assert self._pipe is not None
        with contextlib.suppress(OSError):  # a dead process is reported by the receive
            self._pipe.send(message)
        try:
            return self._receive(deadline)
        except JobError:
            self.start()
            raise

    def _receive(self, deadline: float) -> Reply:
        """The next reply; on a timeout or a death the process is gone afterwards."""
        assert self._pipe is not None
        try:
            if self._pipe.poll(max(0.0, deadline - time.monotonic())):
                reply: Reply = self._pipe.recv()
                return reply
        except (EOFError, OSError):
            raise JobError(self._cause_of_death()) from None
        self._end()
        raise JobError("timed out: the worker was killed")

    def _cause_of_death(self) -> str:
        if self._closed.is_set():
            return "the pool was closed"
        assert self._process is not None
        process = self._process
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
        code = process.poll()
        self._end()
        name = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
        tail = _last_line(self._spec.log)
        return f"the worker died: {name}" + (f" ({tail})" if tail else "")

    def _end(self) -> None:
        process, pipe = self._process, self._pipe
        self._process = self._pipe = None
        self._ready = False
        if pipe is not None:
            pipe.close()
        if process is not None:
            _kill_group(process)
            process.wait()

    def close(self) -> None:
        """Ends the process and waits for its end; after `kill`, for the owning thread or once that has ended."""
        self._closed.set()
        self._end()


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kills the worker and what it may have started (a linker); the group bears the worker's id."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _last_line(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1].strip()[:200] if lines else ""
