"""A server's process: started so that it ends with its starter, asked until it answers, stopped, killed, started anew."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

import psutil

from bcd_registry.errors import ConfigError, StoreUnavailable

HOST = "127.0.0.1"

_LAUNCH = Path(__file__).with_name("launch.py")
_POLL_S = 0.05
_KILL_S = 10.0
_MOST_CHARACTERS = 500
_BAD_LINE = re.compile(r"FATAL|PANIC|[Ee]rror|ERROR|^[EF]\d{4} ")


@dataclass(frozen=True, slots=True)
class User:
    """Who a process runs as."""

    uid: int
    gid: int

    @classmethod
    def current(cls) -> User:
        """This process's own."""
        return cls(os.geteuid(), os.getegid())


@dataclass(frozen=True, slots=True)
class Program:
    """How one server is started and ended.

    Attributes:
        name: What messages call it.
        ports: All that it listens on, first the one that clients use.
        command: The program's absolute path and its arguments.
        variables: Its environment, beside PATH and HOME.
        answers: Whether it does its work; asked until it is true, never raises.
        prepare: Called before each start; makes its data when there is none.
        user: Who it runs as.
        clean: Called after each end; removes what it leaves outside its folder.
        hidden: Secrets that its log may hold.
        start_s: Longest time until it answers.
        death_signal: Sent by the kernel when the starter is gone.
        stop_signal: Sent for an orderly end.
    """

    name: str
    ports: Sequence[int]
    command: Sequence[str]
    variables: Mapping[str, str]
    answers: Callable[[], bool]
    prepare: Callable[[], object]
    user: User
    clean: Callable[[], object] = lambda: None
    hidden: Sequence[str] = ()
    start_s: float = 30.0
    death_signal: int = signal.SIGKILL
    stop_signal: int = signal.SIGTERM


class Server:
    """A program's process and those that it starts. One thread at a time.

    Args:
        program: What runs.
        folder: Where its log lies and it runs.
        starter: Its one thread starts the process: the kernel takes a process's starter to be gone when that thread ends.
    """

    def __init__(self, program: Program, folder: Path, starter: Executor) -> None:
        self.program = program
        self.log = folder / f"{program.name.lower()}.log"
        self._folder = folder
        self._starter = starter
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def port(self) -> int:
        """The loopback port that clients use."""
        return self.program.ports[0]

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self._process is not None and self._process.poll() is None

    def processes(self) -> list[psutil.Process]:
        """Its process, then all below; empty when it does not run."""
        if self._process is None or not self.alive:
            return []
        with contextlib.suppress(psutil.NoSuchProcess):
            first = psutil.Process(self._process.pid)
            return [first, *first.children(recursive=True)]
        return []

    def start(self) -> None:
        """Starts it and waits until it answers.

        Raises:
            ConfigError: It runs already, or another process has one of its ports.
            StoreUnavailable: It does not come up; the message ends with what its log says.
        """
        self.launch()
        self.wait()

    def launch(self) -> None:
        """Starts it and does not wait.

        Raises:
            ConfigError: It runs already, or another process has one of its ports.
            StoreUnavailable: Its data cannot be made.
        """
        if self.alive:
            raise ConfigError(f"{self.program.name} runs already")
        taken = [port for port in self.program.ports if not is_free(port)]
        if taken:
            hint = "end the process that listens there, or use another folder"
            raise ConfigError(f"port {taken[0]} of {self.program.name} is taken", hint=hint)
        self.program.prepare()
        self._process = self._starter.submit(self._spawn).result()

    def wait(self) -> None:
        """Waits until it answers; one that does not is killed.

        Raises:
            StoreUnavailable: It does not come up; the message ends with what its log says.
        """
        ends_at = time.monotonic() + self.program.start_s
        while not self.program.answers():
            if not self.alive:
                raise self._failed("ended while it started")
            if time.monotonic() > ends_at:
                self.kill()
                raise self._failed(f"does not answer after {self.program.start_s:.0f} s")
            time.sleep(_POLL_S)

    def stop(self, patience_s: float = 15.0) -> None:
        """Ends it in an orderly way, and with SIGKILL when that takes longer; calling it again is free."""
        processes = self.processes()
        if self._process is not None and self.alive:
            self._process.send_signal(self.program.stop_signal)
            if wait_gone(processes, patience_s):
                self._kill(processes)
            self._process.wait()
            self.program.clean()

    def kill(self) -> None:
        """Ends it and what it started with SIGKILL, as a crash would; calling it again is free."""
        if self._process is not None and self.alive:
            self._process.send_signal(signal.SIGSTOP)  # it starts no other while they are counted
            self._kill(self.processes())
            self._process.wait()
            self.program.clean()

    def restart(self) -> None:
        """Starts it anew on the same data and ports; one that still runs is stopped first.

        Raises:
            ConfigError: Another process has one of its ports.
            StoreUnavailable: It does not come up; the message ends with what its log says.
        """
        self.stop()
        self.start()

    def last_line(self) -> str:
        """What its log says last, errors before the rest, without secrets."""
        line = telling_line(self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else "")
        for secret in self.program.hidden:
            line = line.replace(secret, "***")
        return line

    def _spawn(self) -> subprocess.Popen[bytes]:
        with os.fdopen(os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as log:
            return subprocess.Popen(
                launched(self.program.command, self.program.death_signal, self.program.user),
                env=environment(self._folder, self.program.variables),
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the starter, which ends its servers in order
            )

    def _kill(self, processes: Sequence[psutil.Process]) -> None:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        if left := wait_gone(processes, _KILL_S):
            raise StoreUnavailable(f"{self.program.name} does not end: process {left[0].pid} is still there")

    def _failed(self, what: str) -> StoreUnavailable:
        return StoreUnavailable(f"{self.program.name} {what}: {self.last_line()}")


def launched(command: Sequence[str], death_signal: int, user: User) -> list[str]:
    """What becomes that command, as that user, and gets the signal when the thread of this process that starts it ends."""
    return [sys.executable, "-I", "-S", str(_LAUNCH), *map(str, (os.getpid(), int(death_signal), user.uid, user.gid)), *command]


def environment(folder: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """A server's variables. Of the user's own there is only PATH: the others speak of other servers."""
    return {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(folder), **variables}


def telling_line(output: str) -> str:
    """The last line that tells of an error, else the last that is not empty."""
    lines = [line.strip() for line in output.splitlines() if line.strip()] or ["it said nothing"]
    return next((line for line in reversed(lines) if _BAD_LINE.search(line)), lines[-1])[:_MOST_CHARACTERS]


def is_free(port: int) -> bool:
    """Whether a server could listen on this loopback port."""
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what is left of closed connections is in nobody's way
        probe.bind((HOST, port))
        return True
    return False


def wait_gone(processes: Sequence[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """Those that are left after the time; one that only waits to be collected is gone."""
    ends_at = time.monotonic() + timeout_s
    while (left := [process for process in processes if _runs(process)]) and time.monotonic() < ends_at:
        time.sleep(_POLL_S)
    return left


def _runs(process: psutil.Process) -> bool:
    """False for one that only waits to be collected; while it has threads, they hold its ports."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and (process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1)
    return False
