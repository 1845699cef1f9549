"""Tracking against a real MLflow store of SQLite and a folder, and against servers that are none."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from bcd_registry.errors import StoreDenied, StoreUnavailable
from bcd_tuner.mlflow_spool import SPOOL_FOLDER, list_entries, read_entry, write_entry
from bcd_tuner.mlflow_store import MlflowStore, quiet
from bcd_tuner.pictures import save_pictures, save_tuning_curves
from bcd_tuner.report import CurvePoint, TuneReport
from bcd_tuner.run_log import PARENT_TAG, RUN_TAG, make_run_log
from bcd_tuner.tracking import EXPERIMENT, PATIENCE_S, Synced, Tracked, Tracker, git_commit, sync
from tests.tuner.mlflow_servers import failing_server, silent_server, unused_port
from tests.tuner.reports import tuned_report

ENDED_S = 1_700_000_000.0
PATIENT_S = 120.0
"""For what must be logged, on a machine that has other things to do."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def uri(folder: Path) -> str:
    return f"sqlite:///{folder / 'mlflow.db'}"


def tracker_of(uri: str, **options: Any) -> Tracker:
    return Tracker(uri, **{"patience_s": PATIENT_S, **options})


@pytest.fixture(scope="module")
def tracked(uri: str, folder: Path) -> Tracked:
    pictures = save_pictures(tuned_report(), folder / "runs", "net")
    tracker = tracker_of(uri, spool=folder / SPOOL_FOLDER, params={"registry": "sqlite:///catalog.db"})
    tracked = tracker.log(tuned_report(), params={"time_budget_s": 300, "fresh": False}, pictures=pictures)
    tracker.drain(PATIENT_S)
    return tracked


@pytest.fixture(scope="module")
def client(uri: str, tracked: Tracked) -> MlflowClient:
    assert tracked.run_id, tracked.note
    return _client(uri)


def _client(uri: str) -> MlflowClient:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return MlflowClient(tracking_uri=uri)


def _runs(client: MlflowClient, tag: str, value: str) -> list[Any]:
    experiment = client.get_experiment_by_name(EXPERIMENT)
    assert experiment is not None
    return list(client.search_runs([experiment.experiment_id], f"tags.`{tag}` = '{value}'"))


def test_the_parent_has_parameters_figures_and_tags(client: MlflowClient, tracked: Tracked) -> None:
    run = client.get_run(str(tracked.run_id))
    assert tracked.note == ""
    assert run.info.experiment_id == tracked.experiment_id
    assert (run.info.status, run.info.run_name) == ("FINISHED", "ppocr-det v6 seed 0")
    wanted = {"network": "ppocr-det", "version": "v6", "seed": "0", "time_budget_s": "300", "registry": "sqlite:///catalog.db"}
    assert wanted.items() <= run.data.params.items()
    figures = {"end_to_end_ms.untuned": 16.75, "end_to_end_ms.tuned": 4.1, "trials": 96.0, "refuted_priors": 1.0}
    assert figures.items() <= run.data.metrics.items()
    assert run.info.end_time - run.info.start_time == pytest.approx(61_500, abs=2)
    (found,) = _runs(client, RUN_TAG, "0123456789abcdef")
    assert found.info.run_id == tracked.run_id


def test_its_curves_are_against_trials_and_against_seconds(client: MlflowClient, tracked: Tracked) -> None:
    curve = tuned_report().curve
    for name, steps in (
        ("estimated_ms_by_trials", [point.trials for point in curve]),
        ("estimated_ms_by_seconds", [int(point.seconds) for point in curve]),
    ):
        history = client.get_metric_history(str(tracked.run_id), name)
        assert [(metric.step, metric.value) for metric in history] == list(
            zip(steps, [point.estimated_ms for point in curve], strict=True)
        )
    assert len(client.get_metric_history(str(tracked.run_id), "coverage_by_trials/cold")) > 2


def test_its_files_tables_and_pictures(client: MlflowClient, tracked: Tracked, folder: Path) -> None:
    names = {file.path for file in client.list_artifacts(str(tracked.run_id))}
    tables, texts = {"tasks.json", "clusters.json"}, {"report.json", "decisions.txt"}
    assert names == tables | texts | {"curve.png", "tasks.png", "time.png"}
    (stored,) = (folder / "mlartifacts").glob(f"{tracked.run_id}/artifacts/report.json")
    assert json.loads(stored.read_text()) == json.loads(json.dumps(tuned_report().as_json()))
    table = json.loads(stored.with_name("tasks.json").read_text())
    assert len(table["data"]) == 9
    assert table["data"][1][table["columns"].index("grade")] == "cluster"
    shown = json.loads(client.get_run(str(tracked.run_id)).data.tags["mlflow.loggedArtifacts"])
    assert {found["path"] for found in shown} == tables


def test_each_cluster_is_a_child_run(client: MlflowClient, tracked: Tracked) -> None:
    children = _runs(client, PARENT_TAG, "0123456789abcdef")
    assert len(children) == 7
    assert {child.data.tags["mlflow.parentRunId"] for child in children} == {tracked.run_id}
    assert {child.info.status for child in children} == {"FINISHED"}
    assert len(_runs(client, "bcd.network", "ppocr-det")) >= 8


def test_what_was_logged_waits_no_more(tracked: Tracked, folder: Path) -> None:
    assert tracked.run_id
    assert list_entries(folder / SPOOL_FOLDER) == []


def _synced(client: MlflowClient, uri: str, spool: Path, report: TuneReport) -> Any:
    """The run in MLflow of a report that was spooled and synced."""
    write_entry(spool, make_run_log(report, params={}, ended_s=ENDED_S), {})
    assert sync(uri, spool).logged == (report.run_id,)
    (run,) = _runs(client, RUN_TAG, report.run_id)
    return run


def test_a_second_run_joins_the_experiment_and_an_interrupted_one_says_so(
    uri: str, client: MlflowClient, tmp_path: Path
) -> None:
    nothing = replace(tuned_report().latency_ms, untuned=None, tuned=None, onnxruntime=None)
    run = _synced(client, uri, tmp_path, tuned_report(run_id="cut", interrupted=True, latency_ms=nothing, curve=()))
    assert run.info.status == "KILLED"
    assert "end_to_end_ms.tuned" not in run.data.metrics


def test_a_long_curve(uri: str, client: MlflowClient, tmp_path: Path) -> None:
    curve = tuple(CurvePoint(seconds=step / 10, trials=step, estimated_ms=5000.0 - step) for step in range(1200))
    run = _synced(client, uri, tmp_path, tuned_report(run_id="long", curve=curve))
    assert run.data.metrics["estimated_ms_by_trials"] == 5000.0 - 1199


@pytest.fixture(params=["silent", "down", "failing", "refusing"])
def no_mlflow(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a server that logs nothing, with a password in it."""
    with ExitStack() as opened:
        if request.param == "silent":
            url = opened.enter_context(silent_server())
        elif request.param == "down":
            url = f"http://127.0.0.1:{unused_port()}"
        else:
            status, code = (500, "INTERNAL_ERROR") if request.param == "failing" else (401, "UNAUTHENTICATED")
            url = opened.enter_context(failing_server(status, code))
        yield url.replace("http://", "http://user:nobodyssecret@")


def test_a_server_that_does_not_log_costs_two_seconds_and_loses_nothing(no_mlflow: str, tmp_path: Path, uri: str) -> None:
    spool = tmp_path / SPOOL_FOLDER
    report = tuned_report(run_id=f"kept-{tmp_path.name}")
    with Tracker(no_mlflow, spool=spool) as tracker:
        _wait_until_ready(tracker)
        tracked = tracker.log(report, pictures=save_pictures(report, tmp_path / "runs", "net"))
    assert tracked.run_id is None
    assert tracked.seconds < PATIENCE_S + 1.0
    assert tracked.note.startswith("MLflow: nothing logged to http://user:***@127.0.0.1:")
    assert "`bcd-registry mlflow sync` logs it" in tracked.note
    assert "nobodyssecret" not in tracked.note
    assert "\n" not in tracked.note
    (entry,) = list_entries(spool)
    assert [path.name for path in read_entry(entry).pictures] == ["curve.png", "tasks.png", "time.png"]
    assert sync(uri, spool) == Synced(logged=(report.run_id,))
    assert sync(uri, spool) == Synced()


def _wait_until_ready(tracker: Tracker) -> None:
    """As a tune does that lasts longer than MLflow's import."""
    assert tracker._child is not None
    answer = tracker._child.answers.get(timeout=120)
    tracker._child.answers.put(answer)


@pytest.mark.parametrize(
    "uri",
    [
        "sqlite:////proc/nowhere/mlflow.db",
        "nonsense://user:nobodyssecret@x",
        "sqlite:///{folder}/text.db",
    ],
)
def test_a_store_that_cannot_be_opened_is_a_note(uri: str, tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("not a database, not a database, not a database")
    tracked = tracker_of(uri.format(folder=tmp_path), spool=tmp_path / "spool").log(tuned_report())
    assert tracked.run_id is None
    assert tracked.note.startswith("MLflow: nothing logged to ")
    assert "nobodyssecret" not in tracked.note
    assert len(list_entries(tmp_path / "spool")) == 1


LIMITED = """
import resource, sys
from pathlib import Path
from bcd_tuner.tracking import Tracker
from tests.tuner.reports import tuned_report
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
folder = Path(sys.argv[1])
tracked = Tracker(f"sqlite:///{folder / 'mlflow.db'}", spool=folder / "spool").log(tuned_report())
print(tracked.run_id, tracked.note)
"""


@pytest.mark.parametrize(("limit", "kept"), [(200_000, 1), (1_000, 0)], ids=["for the database", "for the spool too"])
def test_a_full_disk_is_a_note(tmp_path: Path, limit: int, kept: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path), str(limit)], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("None MLflow: nothing logged to ")
    assert ("`bcd-registry mlflow sync` logs it" in done.stdout) == bool(kept)
    assert done.stderr == ""
    assert len(list_entries(tmp_path / "spool")) == kept


def test_a_run_that_was_cut_off_is_logged_anew_and_one_that_is_there_is_not(
    uri: str, client: MlflowClient, tmp_path: Path
) -> None:
    experiment = client.get_experiment_by_name(EXPERIMENT)
    assert experiment is not None
    cut_off = client.create_run(experiment.experiment_id, tags={RUN_TAG: "half"})
    log = make_run_log(tuned_report(run_id="half"), params={}, ended_s=ENDED_S)
    write_entry(tmp_path, log, {})
    assert sync(uri, tmp_path) == Synced(logged=("half",))
    (run,) = _runs(client, RUN_TAG, "half")
    assert run.info.run_id != cut_off.info.run_id
    write_entry(tmp_path, log, {})
    assert sync(uri, tmp_path) == Synced(known=("half",))
    assert len(_runs(client, RUN_TAG, "half")) == 1
    assert len(_runs(client, PARENT_TAG, "half")) == 7


def test_a_run_without_those_of_its_clusters_gets_them(uri: str, client: MlflowClient, tmp_path: Path) -> None:
    log = make_run_log(tuned_report(run_id="alone"), params={}, ended_s=ENDED_S)
    with quiet():
        store = MlflowStore(uri, EXPERIMENT)
        store.open()
        logged = store.write_run(log, [])
    write_entry(tmp_path, log, {})
    assert sync(uri, tmp_path) == Synced(logged=("alone",))
    (run,) = _runs(client, RUN_TAG, "alone")
    assert run.info.run_id == logged.run_id
    assert len(_runs(client, PARENT_TAG, "alone")) == 7


def test_a_damaged_entry_is_set_aside_and_the_others_go_on(uri: str, tmp_path: Path) -> None:
    write_entry(tmp_path, make_run_log(tuned_report(run_id="whole"), params={}, ended_s=ENDED_S), {})
    damaged = (
        write_entry(tmp_path, make_run_log(tuned_report(run_id="damaged"), params={}, ended_s=ENDED_S), {}) / "run.v1.json"
    )
    damaged.write_bytes(damaged.read_bytes()[:100])
    synced = sync(uri, tmp_path)
    assert synced.logged == ("whole",)
    (line,) = synced.set_aside
    assert "damaged" in line
    assert sync(uri, tmp_path) == Synced()


def test_an_entry_that_mlflow_refuses_is_set_aside_and_the_others_go_on(uri: str, tmp_path: Path) -> None:
    for run_id, ended_s in (("before-time", -1e9), ("timely", ENDED_S)):
        write_entry(tmp_path, make_run_log(tuned_report(run_id=run_id), params={}, ended_s=ended_s), {})
    synced = sync(uri, tmp_path)
    assert synced.logged == ("timely",)
    assert "timestamp" in synced.set_aside[0]
    assert sync(uri, tmp_path) == Synced()


@pytest.mark.parametrize(
    ("status", "code", "error"), [(500, "INTERNAL_ERROR", StoreUnavailable), (403, "PERMISSION_DENIED", StoreDenied)]
)
def test_sync_says_what_is_wrong_and_keeps_what_waits(status: int, code: str, error: type[Exception], tmp_path: Path) -> None:
    write_entry(tmp_path, make_run_log(tuned_report(), params={}, ended_s=ENDED_S), {})
    with failing_server(status, code) as url, pytest.raises(error) as caught:
        sync(url.replace("//", "//user:nobodyssecret@"), tmp_path)
    assert "nobodyssecret" not in str(caught.value)
    assert len(list_entries(tmp_path)) == 1


def test_ui_command_has_no_password() -> None:
    assert Tracker("sqlite:////a b/mlflow.db").ui_command == "mlflow ui --backend-store-uri 'sqlite:////a b/mlflow.db'"
    assert Tracker("http://user:secret@host:5000").ui_command == "http://user:***@host:5000"


def test_the_commit_of_a_folder_that_has_none(tmp_path: Path) -> None:
    assert git_commit(tmp_path) is None
    assert git_commit(tmp_path / "nowhere") is None


CHILD = """
import sys
from bcd_tuner.tracking import Tracker
from tests.tuner.reports import tuned_report
tracker = Tracker(sys.argv[1], patience_s=120.0)
tracked = tracker.log(tuned_report(run_id=sys.argv[2]))
tracker.drain(120)
assert "mlflow" not in sys.modules
sys.exit(tracked.note or None)
"""


def test_first_runs_of_two_processes_at_once_are_quiet_and_both_logged(tmp_path: Path) -> None:
    arguments = [[f"sqlite:///{tmp_path / 'new' / 'mlflow.db'}", f"run-{index}"] for index in range(2)]
    children = [subprocess.Popen([sys.executable, "-c", CHILD, *a], stdout=-1, stderr=-1, text=True) for a in arguments]
    for child in children:
        assert child.communicate(timeout=200) == ("", "")
        assert child.returncode == 0
    with sqlite3.connect(tmp_path / "new" / "mlflow.db") as connection:
        (count,) = connection.execute("SELECT count(*) FROM tags WHERE key = 'bcd.logged' AND value = 'complete'").fetchone()
    connection.close()
    assert count == 2


def test_the_process_that_logs_ends_with_the_tune(tmp_path: Path) -> None:
    with silent_server() as url:
        tracker = Tracker(url)
        with tracker:
            assert tracker._child is not None
            process = tracker._child.process
        assert process.poll() is not None
        tracker.close()


def test_pictures_are_pngs_of_any_report(tmp_path: Path) -> None:
    report = tuned_report()
    for name, curve in (("none", ()), ("one", report.curve[:1]), ("all", report.curve)):
        path = save_tuning_curves(tuned_report(curve=curve), tmp_path / "new" / f"{name}.png", others={"v4": report.curve})
        assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert (
        save_pictures(
            tuned_report(curve=(), tasks=(), time_s=replace(report.time_s, search=0, build=0, run=0, other=0)), tmp_path, "x"
        )
        == {}
    )
    slower = [replace(task, after_ms=(task.before_ms or 0.0) * 2) for task in report.tasks] * 2
    pictures = save_pictures(tuned_report(tasks=tuple(slower)), tmp_path, "slower")
    assert [path.name for path in pictures.values()] == ["slower.png", "slower-tasks.png", "slower-time.png"]
