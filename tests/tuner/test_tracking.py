"""Tracking against a real MLflow store: SQLite and a folder."""

from __future__ import annotations

import json
import logging
import sqlite3
import subprocess
import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from bcd_tuner.pictures import save_tuning_curves
from bcd_tuner.report import CurvePoint
from bcd_tuner.tracking import EXPERIMENT, Tracked, Tracker
from tests.cli.values import make_report


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def tracker(folder: Path) -> Tracker:
    return Tracker(f"sqlite:///{folder / 'mlflow.db'}")


@pytest.fixture(scope="module")
def tracked(tracker: Tracker, folder: Path) -> Tracked:
    picture = save_tuning_curves(make_report(), folder / "runs" / "curve.png")
    return tracker.log(make_report(), params={"tvm": "0.27.0.post1", "trials_a_task": 32, "long": "x" * 9000}, picture=picture)


@pytest.fixture(scope="module")
def client(tracker: Tracker, tracked: Tracked) -> MlflowClient:
    assert tracked.run_id
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return MlflowClient(tracking_uri=tracker.uri)


def test_run_has_parameters_and_latencies(client: MlflowClient, tracked: Tracked) -> None:
    run = client.get_run(str(tracked.run_id))
    assert tracked.note == ""
    assert 0 < tracked.seconds < 60
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "ppocr-det v6 seed 0"
    wanted = {"network": "ppocr-det", "version": "v6", "seed": "0", "tvm": "0.27.0.post1", "trials_a_task": "32"}
    assert wanted.items() <= run.data.params.items()
    assert {"grade.exact": "3", "grade.cluster": "2", "grade.anchor": "1", "grade.cold": "3"}.items() <= run.data.params.items()
    assert {"end_to_end_ms.untuned": 16.75, "end_to_end_ms.tuned": 4.1, "trials": 96.0}.items() <= run.data.metrics.items()
    assert run.info.end_time - run.info.start_time == pytest.approx(61_500, abs=2)


def test_curves_against_trials_and_against_seconds(client: MlflowClient, tracked: Tracked) -> None:
    curve = make_report().curve
    for name, steps in (
        ("estimated_ms_by_trials", [point.trials for point in curve]),
        ("estimated_ms_by_seconds", [int(point.seconds) for point in curve]),
    ):
        history = client.get_metric_history(str(tracked.run_id), name)
        assert [(metric.step, metric.value) for metric in history] == list(
            zip(steps, [point.estimated_ms for point in curve], strict=True)
        )


def test_table_report_and_picture(client: MlflowClient, tracked: Tracked, folder: Path) -> None:
    names = {file.path for file in client.list_artifacts(str(tracked.run_id))}
    assert names == {"tasks.json", "report.json", "curve.png"}
    (stored,) = (folder / "mlartifacts").glob(f"{tracked.run_id}/artifacts/report.json")
    assert json.loads(stored.read_text()) == json.loads(json.dumps(make_report().as_json()))
    rows = json.loads(stored.with_name("tasks.json").read_text())
    assert len(rows["data"]) == len(make_report().tasks)
    assert rows["data"][0][rows["columns"].index("grade")] == "exact"


def test_second_run_joins_the_experiment_and_an_interrupted_one_says_so(tracker: Tracker, client: MlflowClient) -> None:
    again = tracker.log(make_report(interrupted=True, latency_ms=_nothing_measured(), curve=()))
    run = client.get_run(str(again.run_id))
    assert run.info.status == "KILLED"
    assert "end_to_end_ms.tuned" not in run.data.metrics
    assert run.info.experiment_id == _experiment_id(client)


def _experiment_id(client: MlflowClient) -> str:
    experiment = client.get_experiment_by_name(EXPERIMENT)
    assert experiment is not None
    return str(experiment.experiment_id)


def _nothing_measured() -> Any:
    return replace(make_report().latency_ms, untuned=None, tuned=None, onnxruntime=None)


def test_long_curve(tracker: Tracker, client: MlflowClient) -> None:
    curve = [CurvePoint(seconds=step / 10, trials=step, estimated_ms=5000.0 - step) for step in range(1200)]
    run_id = str(tracker.log(make_report(curve=tuple(curve))).run_id)
    assert client.get_run(run_id).data.metrics["estimated_ms_by_trials"] == 5000.0 - 1199


def test_a_database_that_cannot_be_opened_is_a_note_at_once(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").mkdir()
    tracked = Tracker(f"sqlite:///{tmp_path / 'mlflow.db'}").log(make_report())
    assert tracked.run_id is None
    assert "unable to open database file" in tracked.note
    assert tracked.seconds < 30


@pytest.mark.parametrize(
    "uri", ["sqlite:////proc/nowhere/mlflow.db", "http://user:secret@127.0.0.1:9", "nonsense://x", "sqlite:///{folder}/text.db"]
)
def test_a_store_that_fails_is_a_note(uri: str, tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("not a database, not a database, not a database")
    tracked = Tracker(uri.format(folder=tmp_path)).log(make_report())
    assert tracked.run_id is None
    assert tracked.note.startswith("MLflow: nothing logged to ")
    assert "\n" not in tracked.note
    assert "secret" not in tracked.note
    assert tracked.seconds < 30


def test_a_picture_that_is_gone_marks_the_run_failed(tracker: Tracker, client: MlflowClient, tmp_path: Path) -> None:
    tracked = tracker.log(make_report(run_id="no-picture"), picture=tmp_path / "gone.png")
    assert tracked.run_id is None
    assert "gone.png" in tracked.note
    (run,) = client.search_runs([_experiment_id(client)], "tags.`bcd.run_id` = 'no-picture'")
    assert run.info.status == "FAILED"


def test_ui_command_has_no_password() -> None:
    assert Tracker("sqlite:////a b/mlflow.db").ui_command == "mlflow ui --backend-store-uri 'sqlite:////a b/mlflow.db'"
    assert Tracker("http://user:secret@host:5000").ui_command == "http://***@host:5000"


def test_log_levels_are_put_back(tracker: Tracker) -> None:
    logging.getLogger("alembic").setLevel(logging.INFO)
    tracker.log(make_report())
    assert logging.getLogger("alembic").level == logging.INFO


CHILD = """
import logging, sys
logging.basicConfig(level=logging.INFO)
from bcd_tuner.tracking import Tracker
from tests.cli.values import make_report
assert "mlflow" not in sys.modules
tracked = Tracker(sys.argv[1]).log(make_report(run_id=sys.argv[2]))
assert "mlflow" in sys.modules
sys.exit(tracked.note or None)
"""


def _start(arguments: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", CHILD, *arguments], stdout=-1, stderr=-1, text=True)


def test_first_runs_of_two_processes_at_once_are_quiet_and_both_logged(tmp_path: Path) -> None:
    children = [_start([f"sqlite:///{tmp_path / 'new' / 'mlflow.db'}", f"run-{index}"]) for index in range(2)]
    for child in children:
        assert child.communicate(timeout=120) == ("", "")
        assert child.returncode == 0
    with sqlite3.connect(tmp_path / "new" / "mlflow.db") as connection:
        (count,) = connection.execute("SELECT count(*) FROM runs WHERE status = 'FINISHED'").fetchone()
    connection.close()
    assert count == 2


def test_picture_is_a_png_of_any_curve(tmp_path: Path) -> None:
    for name, curve in (("none", ()), ("one", make_report().curve[:1]), ("all", make_report().curve)):
        path = save_tuning_curves(
            make_report(curve=curve), tmp_path / "new" / f"{name}.png", others={"v4": make_report().curve}
        )
        assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
