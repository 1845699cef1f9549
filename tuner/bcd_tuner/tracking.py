"""One MLflow run for each tuning run. MLflow is imported here only, and only when something is logged."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import sqlite3
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from bcd_tuner.report import CurvePoint, TuneReport

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric

EXPERIMENT = "bcd-registry"

_METRICS_A_BATCH = 1000  # the REST API's own limit
_PARAM_CHARS = 500
_SQLITE = "sqlite:///"
_CREDENTIALS = re.compile(r"//[^/@\s]+@")
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # a server that is down must cost seconds, not the minutes of MLflow's own defaults
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Tracked:
    """What became of logging a run.

    Attributes:
        run_id: MLflow's id; None when nothing could be logged.
        seconds: Seconds it took, import of MLflow included.
        note: One line for people when something went wrong; else empty.
    """

    run_id: str | None
    seconds: float
    note: str = ""


class Tracker:
    """Logs finished runs to one MLflow store. Keeps no connection between calls; safe to share between processes."""

    def __init__(self, uri: str, *, experiment: str = EXPERIMENT) -> None:
        """Nothing is imported or opened yet.

        Args:
            uri: An MLflow tracking URI. With `sqlite:///FOLDER/mlflow.db`, which needs no server, files go to
                `FOLDER/mlartifacts`; otherwise the server knows where.
        """
        self.uri = uri
        self.experiment = experiment
        self._database = Path(uri.removeprefix(_SQLITE)).absolute() if uri.startswith(_SQLITE) else None

    @property
    def ui_command(self) -> str:
        """What to type to see the runs; for a server, its address. Without a password."""
        shown = _one_line(self.uri)
        return shown if shown.startswith("http") else f"mlflow ui --backend-store-uri {shlex.quote(shown)}"

    def log(self, report: TuneReport, *, params: Mapping[str, object] | None = None, picture: Path | None = None) -> Tracked:
        """Log one run: parameters, curves, end-to-end latencies, the table of tasks and the picture.

        Never raises: a tune does not fail because its diary does.

        Args:
            params: More parameters, such as the versions and the budget that the run had.
            picture: A PNG to keep with the run.
        """
        began = time.perf_counter()
        try:
            with _quiet():
                run_id = self._log(report, dict(params or {}), picture)
        except Exception as error:  # noqa: BLE001 - whatever MLflow, its database or its server throws
            _log.debug("MLflow logging failed", exc_info=True)
            note = f"MLflow: nothing logged to {_one_line(self.uri)}: {_one_line(error)}"
            return Tracked(None, time.perf_counter() - began, note)
        return Tracked(run_id, time.perf_counter() - began)

    def _log(self, report: TuneReport, params: dict[str, object], picture: Path | None) -> str:
        from mlflow.entities import Param

        client, experiment_id = self._open()
        ended = time.time()
        start_ms = int((ended - report.wall_s) * 1000)
        run = client.create_run(
            experiment_id,
            start_time=start_ms,
            run_name=f"{report.network} {report.version} seed {report.seed}",
            tags={"bcd.run_id": report.run_id, "bcd.network": report.network, "bcd.version": report.version},
        )
        run_id = str(run.info.run_id)
        try:
            values = [Param(name, str(value)[:_PARAM_CHARS]) for name, value in (_report_params(report) | params).items()]
            client.log_batch(run_id, params=values)
            metrics = [*_curve_metrics(report.curve, start_ms), *_final_metrics(report, int(ended * 1000))]
            for first in range(0, len(metrics), _METRICS_A_BATCH):
                client.log_batch(run_id, metrics=metrics[first : first + _METRICS_A_BATCH])
            client.log_table(run_id, data=_task_table(report), artifact_file="tasks.json")
            client.log_dict(run_id, report.as_json(), "report.json")
            if picture is not None:
                client.log_artifact(run_id, str(picture))
        except BaseException:
            with contextlib.suppress(Exception):
                client.set_terminated(run_id, status="FAILED")
            raise
        client.set_terminated(run_id, status="KILLED" if report.interrupted else "FINISHED", end_time=int(ended * 1000))
        return run_id

    def _open(self) -> tuple[MlflowClient, str]:
        """A client and the experiment's id; creates database, folder and experiment where they are missing."""
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient

        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.ERROR)
        with self._creation_lock():
            client = MlflowClient(tracking_uri=self.uri)
            known = client.get_experiment_by_name(self.experiment)
            if known is not None:
                return client, str(known.experiment_id)
            location = None if self._database is None else (self._database.parent / "mlartifacts").as_uri()
            return client, str(client.create_experiment(self.experiment, artifact_location=location))

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


def _require_writable(database: Path) -> None:
    """Raise at once where MLflow, which tries again with longer and longer pauses, would take minutes to say so."""
    with contextlib.closing(sqlite3.connect(database, timeout=20)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.rollback()


def _report_params(report: TuneReport) -> dict[str, object]:
    grades = Counter(str(task.grade) for task in report.tasks)
    return {
        "network": report.network,
        "version": report.version,
        "target": report.target,
        "seed": report.seed,
        "depth": report.depth,
        "n_tasks": len(report.tasks),
        "threads": report.latency_ms.threads,
        **{f"grade.{grade}": n for grade, n in sorted(grades.items())},
    }


def _curve_metrics(curve: Sequence[CurvePoint], start_ms: int) -> list[Metric]:
    """The same curve twice, since a chart's x axis is the step: trials in one metric, whole seconds in the other."""
    from mlflow.entities import Metric

    metrics = []
    for point in curve:
        moment_ms = start_ms + int(point.seconds * 1000)
        metrics.append(Metric("estimated_ms_by_trials", point.estimated_ms, moment_ms, point.trials))
        metrics.append(Metric("estimated_ms_by_seconds", point.estimated_ms, moment_ms, int(point.seconds)))
    return metrics


def _final_metrics(report: TuneReport, moment_ms: int) -> list[Metric]:
    from mlflow.entities import Metric

    latency = report.latency_ms
    values: dict[str, float | None] = {
        "end_to_end_ms.untuned": latency.untuned,
        "end_to_end_ms.tuned": latency.tuned,
        "end_to_end_ms.onnxruntime": latency.onnxruntime,
        "estimated_ms.untuned": latency.estimated_untuned,
        "estimated_ms.tuned": latency.estimated_tuned,
        "trials": report.trials,
        "wall_s": report.wall_s,
        "first_candidate_s": report.first_candidate_s,
        "checked": float(report.checked),
        "saved_trials_estimated": report.saving.trials,
        "saved_s_estimated": report.saving.seconds,
        **{f"time_s.{part}": seconds for part, seconds in asdict(report.time_s).items()},
    }
    if latency.untuned and latency.tuned:
        values["speedup"] = latency.untuned / latency.tuned
    return [Metric(name, float(value), moment_ms, 0) for name, value in values.items() if value is not None]


def _task_table(report: TuneReport) -> dict[str, list[Any]]:
    rows = [asdict(task) for task in report.tasks]
    names = list(rows[0]) if rows else ["name"]
    return {name: [str(row[name]) if name in ("grade", "prior") else row[name] for row in rows] for name in names}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep MLflow's and alembic's own lines and warnings off the terminal, then put the levels back."""
    loggers = [logging.getLogger(name) for name in ("mlflow", "alembic")]
    levels = [logger.level for logger in loggers]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _one_line(thing: object) -> str:
    """Short, and without the password that an URI may carry."""
    text = " ".join(str(thing).split()) or type(thing).__name__
    text = _CREDENTIALS.sub("//***@", text)
    return text if len(text) <= 200 else f"{text[:197]}..."
