"""The one place where MLflow is imported: runs written to one of its stores, and what its errors mean."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")

# MLflow reads the two when it is imported
import mlflow
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException
from mlflow.models import Model, ModelSignature
from mlflow.types import Schema, TensorSpec

from bcd_registry.errors import BcdError, StoreDenied, StoreUnavailable

from .run_log import PARENT_TAG, RUN_TAG, Point, RunLog, without_secrets

__all__ = [
    "Logged",
    "MlflowClient",
    "MlflowException",
    "MlflowStore",
    "Model",
    "ModelSignature",
    "Refused",
    "Schema",
    "TensorSpec",
    "mlflow",
    "one_line",
    "problem_of",
    "quiet",
    "set_patience",
    "using",
]

LOGGED_TAG = "bcd.logged"
"""How far a run came: one without it was cut off on the way."""

_RUN_ALONE = "run"
_COMPLETE = "complete"
_PARENT = "mlflow.parentRunId"
_SQLITE = "sqlite:///"
_METRICS_A_BATCH = 800  # the REST API takes 1000 entities; the first batch has the parameters too
_WRITERS = 8
_LINE_CHARS = 200
_REFUSED = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST")
_DENIED = ("UNAUTHENTICATED", "PERMISSION_DENIED", "CUSTOMER_UNAUTHORIZED")
_CREDENTIALS_HINT = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
_ADDRESS_HINT = "check mlflow_tracking_uri in bcd-registry.toml, or BCD_MLFLOW_TRACKING_URI"


class Refused(StoreUnavailable):
    """MLflow does not take a value of the run: trying again is no use."""


@dataclass(frozen=True, slots=True)
class Logged:
    """Where MLflow keeps a run.

    Attributes:
        complete: Whether the runs of its clusters are there too.
    """

    run_id: str
    experiment_id: str
    complete: bool = False


class MlflowStore:
    """One experiment of one MLflow store. Call `open` first; one thread at a time.

    Every call raises what MLflow, its database or its server raises: see `problem_of`.
    """

    def __init__(self, uri: str, experiment: str) -> None:
        self.uri, self.experiment = uri, experiment
        self.experiment_id = ""
        self._database = Path(uri.removeprefix(_SQLITE)).absolute() if uri.startswith(_SQLITE) else None

    def open(self) -> None:
        """Find the experiment; database, folder and experiment are made where they are missing."""
        with self._creation_lock():
            self._client = MlflowClient(tracking_uri=self.uri)
            known = self._client.get_experiment_by_name(self.experiment)
            if known is None:
                location = None if self._database is None else (self._database.parent / "mlartifacts").as_uri()
                self.experiment_id = str(self._client.create_experiment(self.experiment, artifact_location=location))
                return
        if known.lifecycle_stage != "active":
            hint = f"`mlflow experiments restore --experiment-id {known.experiment_id}`"
            raise StoreUnavailable(f"MLflow's experiment {self.experiment!r} was deleted", hint=hint)
        self.experiment_id = str(known.experiment_id)

    def find(self, run_id: str) -> Logged | None:
        """The run of a tune, when all of its own is there."""
        for run in self._search(RUN_TAG, run_id):
            if (stage := run.data.tags.get(LOGGED_TAG)) is not None:
                return Logged(str(run.info.run_id), self.experiment_id, stage == _COMPLETE)
        return None

    def remove_unfinished(self, run_id: str) -> None:
        """Delete what an attempt that was cut off left behind, as MLflow deletes: it can be restored there."""
        for tag in (PARENT_TAG, RUN_TAG):
            for run in self._search(tag, run_id):
                if LOGGED_TAG not in run.data.tags:
                    self._client.delete_run(run.info.run_id)

    def write_run(self, log: RunLog, pictures: Sequence[Path]) -> Logged:
        """Log a run without those of its clusters; it has all of its own, or is marked failed.

        Raises:
            Refused: MLflow does not take one of its values.
        """
        run_id = self._create(log)
        try:
            self._write_values(run_id, log)
            self._write_files(run_id, log, pictures)
            self._client.log_batch(run_id, tags=[RunTag(LOGGED_TAG, _RUN_ALONE)])
        except BaseException as error:  # Ctrl-C too
            with contextlib.suppress(Exception):
                self._client.set_terminated(run_id, status="FAILED")
            if isinstance(error, MlflowException) and error.error_code in _REFUSED:
                raise Refused(f"MLflow refuses run {log.run_id[:8]}: {one_line(error)}") from error
            raise
        self._client.set_terminated(run_id, status=log.status, end_time=int(log.ended_s * 1000))
        return Logged(run_id, self.experiment_id)

    def write_clusters(self, log: RunLog, parent: Logged) -> None:
        """Log the runs of the clusters below theirs."""
        with ThreadPoolExecutor(1 if self._database else _WRITERS) as writers:
            list(writers.map(lambda child: self._write_child(parent.run_id, child), log.children))
        self._client.log_batch(parent.run_id, tags=[RunTag(LOGGED_TAG, _COMPLETE)])

    def _write_child(self, parent_id: str, child: RunLog) -> None:
        run_id = self._create(child, {_PARENT: parent_id})
        self._write_values(run_id, child)
        self._client.set_terminated(run_id, status=child.status, end_time=int(child.ended_s * 1000))

    def _create(self, log: RunLog, tags: dict[str, str] | None = None) -> str:
        run = self._client.create_run(
            self.experiment_id, start_time=int(log.started_s * 1000), run_name=log.name, tags={**log.tags, **(tags or {})}
        )
        return str(run.info.run_id)

    def _write_values(self, run_id: str, log: RunLog) -> None:
        """Parameters and metrics, in as few requests as MLflow allows."""
        params = [Param(name, value) for name, value in log.params.items()]
        metrics = [_metric(point) for point in log.points]
        for first in range(0, max(1, len(metrics)), _METRICS_A_BATCH):
            self._client.log_batch(run_id, metrics=metrics[first : first + _METRICS_A_BATCH], params=[] if first else params)

    def _write_files(self, run_id: str, log: RunLog, pictures: Sequence[Path]) -> None:
        with tempfile.TemporaryDirectory(prefix="bcd-registry-mlflow-") as name:
            folder = Path(name)
            for file, text in log.texts.items():
                (folder / file).write_text(text, encoding="utf-8")
            for picture in pictures:
                (folder / picture.name).write_bytes(picture.read_bytes())
            self._client.log_artifacts(run_id, str(folder))
        for file, columns in log.tables.items():
            self._client.log_table(run_id, data=columns, artifact_file=file)

    def _search(self, tag: str, value: str) -> Sequence[Run]:
        return list(self._client.search_runs([self.experiment_id], f"tags.`{tag}` = '{value}'"))

    @contextlib.contextmanager
    def _creation_lock(self) -> Iterator[None]:
        """Two first runs at once would both migrate a new SQLite database, and one of them would fail."""
        if self._database is None:
            yield
            return
        self._database.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{self._database}.lock", timeout=60):
            _require_writable(self._database)
            yield


def problem_of(error: Exception, uri: str) -> BcdError:
    """What MLflow's error means for a user: one line, without a secret, and a hint."""
    if isinstance(error, BcdError):
        return error
    shown, reason = one_line(uri), one_line(error)
    if isinstance(error, MlflowException) and error.error_code in _DENIED:
        return StoreDenied(f"MLflow at {shown} refuses this user", hint=_CREDENTIALS_HINT)
    return StoreUnavailable(f"MLflow at {shown} cannot be used: {reason}", hint=_ADDRESS_HINT)


def one_line(thing: object) -> str:
    """Short, and without the password that an URI may carry."""
    text = without_secrets(" ".join(str(thing).split()) or type(thing).__name__)
    return text if len(text) <= _LINE_CHARS else f"{text[: _LINE_CHARS - 3]}..."


def set_patience(timeout_s: float, retries: int) -> None:
    """How long this process's requests may take; what the user has set goes before."""
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", str(max(1, round(timeout_s))))
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", str(retries))
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "1")


@contextlib.contextmanager
def using(uri: str) -> Iterator[None]:
    """MLflow's own functions work with this store for the block: they know one for the whole process only."""
    known = mlflow.is_tracking_uri_set()  # type: ignore[no-untyped-call]
    before = mlflow.get_tracking_uri() if known else None
    mlflow.set_tracking_uri(uri)
    try:
        yield
    finally:
        mlflow.set_tracking_uri(before)  # type: ignore[arg-type]  # None unsets it


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep MLflow's and alembic's own lines and warnings off the terminal, then put the levels back."""
    loggers = [logging.getLogger(name) for name in ("mlflow", "alembic")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _metric(point: Point) -> Metric:
    return Metric(point.name, point.value, int(point.at_s * 1000), point.step)


def _require_writable(database: Path) -> None:
    """Raise at once where MLflow, which tries again with longer and longer pauses, would take minutes to say so."""
    with contextlib.closing(sqlite3.connect(database, timeout=20)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.rollback()
