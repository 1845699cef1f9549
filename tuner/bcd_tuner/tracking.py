"""One MLflow run for each tune, without the tune waiting for MLflow: it waits two seconds at most, and loses nothing.

A run is put on disk first, whole (`mlflow_spool.py`). A process of its own, started when the tune begins, logs it, and is ended
when it takes longer. Once it has the run it may go on alone with those of the clusters (`mlflow_child.py`). What was not
logged stays on disk for `sync`. MLflow itself is imported in `mlflow_store.py` only.
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from bcd_registry.errors import BcdError, CorruptBlob, RegistryError
from bcd_registry.urls import masked

from .mlflow_spool import SYNC_COMMAND, holding, list_entries, read_entry, remove_entry, set_aside, write_entry
from .report import TuneReport
from .run_log import make_run_log, without_secrets

if TYPE_CHECKING:
    from .mlflow_store import MlflowStore

EXPERIMENT = "bcd-registry"

PATIENCE_S = 2.0
"""How long a tune waits at its end for what MLflow does."""

_START_S = 20.0
"""How long MLflow's import, and making its SQLite database, may take from the start of the tune: they are our own work."""

_SYNC_TIMEOUT_S = 20.0
_GIT_TIMEOUT_S = 1.0
_NOTE_CHARS = 200
_BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from bcd_tuner.mlflow_child import main; main()"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Tracked:
    """What became of logging a run.

    Attributes:
        run_id: MLflow's id; None when it was not logged.
        experiment_id: Where MLflow keeps it.
        seconds: Seconds that the caller waited.
        note: One line for people when something went wrong; else empty.
    """

    run_id: str | None
    seconds: float
    note: str = ""
    experiment_id: str | None = None


class Tracker:
    """Logs one tune to an MLflow store. Use it in a `with` block around the tune; one thread at a time."""

    def __init__(
        self,
        uri: str,
        *,
        experiment: str = EXPERIMENT,
        spool: Path | None = None,
        params: Mapping[str, object] | None = None,
        patience_s: float = PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is imported or opened yet.

        Args:
            uri: An MLflow tracking URI. With `sqlite:///FOLDER/mlflow.db`, which needs no server, files go to
                `FOLDER/mlartifacts`; otherwise the server knows where.
            spool: Where a run waits that MLflow does not take; None forgets it.
            params: What is logged with every run, such as the registry's name.
        """
        self.uri, self.experiment = uri, experiment
        self._spool, self._params, self._patience_s, self._clock = spool, dict(params or {}), patience_s, clock
        self._child: _Child | None = None
        self._alone: _Child | None = None

    @property
    def ui_command(self) -> str:
        """What to type to see the runs; for a server, its address. Without a password."""
        shown = masked(self.uri)
        return shown if shown.startswith("http") else f"mlflow ui --backend-store-uri {shlex.quote(shown)}"

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self) -> None:
        """Start the process that logs, so that it has MLflow at hand when the tune ends; calling it again is free."""
        if self._child is None:
            self._params.setdefault("git_commit", git_commit(Path.cwd()))
            self._child = _Child({"uri": self.uri, "experiment": self.experiment}, self._clock)

    def close(self) -> None:
        """End that process; calling it again is free."""
        if self._child is not None:
            self._child.close()
            self._child = None

    def drain(self, timeout_s: float) -> None:
        """Wait until what goes on after `log` has ended; a tune does not need to.

        Raises:
            subprocess.TimeoutExpired: It takes longer.
        """
        if self._alone is not None:
            self._alone.process.wait(timeout_s)

    def log(
        self, report: TuneReport, *, params: Mapping[str, object] | None = None, pictures: Mapping[str, Path] | None = None
    ) -> Tracked:
        """Log one run: parameters, curves, latencies, tables, pictures, and a child run for each cluster.

        Never raises: a tune does not fail because its diary does.

        Args:
            params: More parameters, such as the budget that the run had.
            pictures: PNGs to keep with the run, by the name that they get there.
        """
        began = self._clock()
        try:
            with tempfile.TemporaryDirectory(prefix="bcd-registry-mlflow-") as forgotten:
                return self._log(self._spool or Path(forgotten), report, dict(params or {}), dict(pictures or {}), began)
        except (BcdError, OSError) as error:
            return self._not_logged(began, str(error), kept=False)
        finally:
            self.close()

    def _log(
        self, root: Path, report: TuneReport, params: dict[str, object], pictures: Mapping[str, Path], began: float
    ) -> Tracked:
        self.begin()
        assert self._child is not None
        log = make_run_log(report, params=self._params | params, ended_s=time.time())
        folder = write_entry(root, log, {name: path.read_bytes() for name, path in pictures.items()})
        answer = self._child.ask({"entry": str(folder)}, self._patience_s)
        if answer is None:
            reason = f"no answer in {self._patience_s:.0f} s"
            return self._not_logged(began, reason, kept=self._spool is not None)
        if "error" in answer:
            return self._not_logged(began, answer["error"], kept=self._spool is not None)
        self._child.release()
        self._alone, self._child = self._child, None
        return Tracked(answer["run_id"], self._clock() - began, experiment_id=answer["experiment_id"])

    def _not_logged(self, began: float, reason: str, *, kept: bool) -> Tracked:
        short = without_secrets(" ".join(reason.split()))
        short = short if len(short) <= _NOTE_CHARS else f"{short[: _NOTE_CHARS - 3]}..."
        later = f"; `{SYNC_COMMAND}` logs it" if kept else ""
        return Tracked(None, self._clock() - began, f"MLflow: nothing logged to {masked(self.uri)}: {short}{later}")


@dataclass(frozen=True, slots=True)
class Synced:
    """What became of the runs that waited.

    Attributes:
        logged: Ids of the tunes that MLflow has now.
        known: Of those that it had already.
        busy: Of those that another process logs at this moment.
        set_aside: Files that were renamed, one line each with the reason.
    """

    logged: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    busy: tuple[str, ...] = ()
    set_aside: tuple[str, ...] = ()

    def as_json(self) -> dict[str, list[str]]:
        """Plain JSON."""
        return {name: list(getattr(self, name)) for name in ("logged", "known", "busy", "set_aside")}

    def __add__(self, other: Synced) -> Synced:
        return Synced(
            (*self.logged, *other.logged),
            (*self.known, *other.known),
            (*self.busy, *other.busy),
            (*self.set_aside, *other.set_aside),
        )


def sync(uri: str, root: Path, *, experiment: str = EXPERIMENT) -> Synced:
    """Log the runs that wait; one that MLflow has already, by its tag, is not logged twice.

    Args:
        root: The spool, `home/mlflow-spool`; it need not be there.

    Raises:
        StoreUnavailable: MLflow does not answer, or fails: what it has not taken stays.
        StoreDenied: It refuses this user, or the folder is not this user's.
    """
    folders = list_entries(root)
    if not folders:
        return Synced()
    from .mlflow_store import MlflowStore, problem_of, quiet, set_patience

    set_patience(_SYNC_TIMEOUT_S, retries=2)
    synced = Synced()
    with quiet():
        store = MlflowStore(uri, experiment)
        try:
            store.open()
            for folder in folders:
                synced += _sync_one(store, folder)
        except RegistryError:
            raise
        except Exception as error:  # MLflow's errors have no common class
            raise problem_of(error, uri) from error
    return synced


def _sync_one(store: MlflowStore, folder: Path) -> Synced:
    from .mlflow_store import Refused

    with holding(folder) as mine:
        if not mine:
            return Synced(busy=(folder.name,))
        try:
            entry = read_entry(folder)
        except CorruptBlob as error:
            return _aside(folder, error.message)
        run_id = entry.log.run_id
        found = store.find(run_id)
        if found is not None and found.complete:
            remove_entry(folder)
            return Synced(known=(run_id,))
        store.remove_unfinished(run_id)
        try:
            logged = store.write_run(entry.log, entry.pictures) if found is None else found
        except Refused as error:
            return _aside(folder, error.message)
        store.write_clusters(entry.log, logged)
        remove_entry(folder)
    return Synced(logged=(run_id,))


def _aside(folder: Path, reason: str) -> Synced:
    line = f"{set_aside(folder)}: set aside: {reason}"
    _log.warning("%s", line)
    return Synced(set_aside=(line,))


def git_commit(folder: Path) -> str | None:
    """The commit that the folder is at; None where there is none, or no git."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        found = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_S,
            check=True,
        )
        return found.stdout.strip() or None
    return None


@dataclass(slots=True)
class _Child:
    """The process of `mlflow_child.py`."""

    settings: Mapping[str, str]
    clock: Callable[[], float]
    process: subprocess.Popen[str] = field(init=False)
    began: float = field(init=False)
    answers: queue.SimpleQueue[dict[str, Any] | None] = field(init=False)
    reader: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.began, self.answers = self.clock(), queue.SimpleQueue()
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", _BOOT, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            process_group=0,  # Ctrl-C is for the tune, which still has something to log
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        self._write(self.settings)

    def ask(self, message: Mapping[str, str], patience_s: float) -> dict[str, Any] | None:
        """Its answer; None when that takes longer, counted from when it is ready, or from `_START_S` after its start."""
        self._write(message)
        ends_at = max(self.clock() + patience_s, self.began + _START_S)
        while True:
            try:
                answer = self.answers.get(timeout=max(0.0, ends_at - self.clock()))
            except queue.Empty:
                return None
            if answer is None:
                return {"error": f"the process that logs ended with {self.process.wait()}"}
            if "ready" not in answer:
                return answer
            ends_at = self.clock() + patience_s

    def release(self) -> None:
        """Let it end by itself."""
        threading.Thread(target=self.process.wait, daemon=True).start()  # else it would stay as a zombie
        self._close_input()

    def close(self) -> None:
        """End it at once."""
        self.process.kill()
        self.process.wait()
        self._close_input()
        self.reader.join()

    def _close_input(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()

    def _write(self, message: Mapping[str, str]) -> None:
        with contextlib.suppress(OSError, ValueError):  # one that is dead is found out when it is asked
            assert self.process.stdin is not None
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout, contextlib.suppress(OSError, ValueError):
            for line in self.process.stdout:
                self.answers.put(json.loads(line))
        self.answers.put(None)
