"""Commands in this process: results on stdout, everything else on stderr, documented exit codes."""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bcd_cli.main import EXIT_CODES
from bcd_cli.tune import _runnable
from bcd_registry import errors
from bcd_registry.settings import load_settings, open_registry
from bcd_tuner.report import ProgressEvent, ProgressSink, TuneReport
from bcd_tuner.session import TuneRequest
from tests.cli.conftest import Invoke
from tests.cli.values import fill_registry, make_plan, make_report

Run = Callable[..., Any]
TUNE_FIELDS = {"schema", "network", "version", "target", "seed", "trials", "wall_s", "time_s", "latency_ms", "checked", "tasks"}
TASK_FIELDS = {"name", "workload_key", "cluster", "weight", "grade", "prior", "trials", "before_ms", "after_ms", "note"}


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "net.onnx"
    path.write_bytes(b"")
    return str(path)


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Callable[[Run], None]:
    """Put a function in the place of the real session."""

    def replace(run: Run) -> None:
        monkeypatch.setattr("bcd_tuner.session.tune", run)
        monkeypatch.setattr("bcd_tuner.session.plan", run)

    return replace


def _noisy(result: Any, seen: list[TuneRequest] | None = None) -> Run:
    def run(request: TuneRequest, registry: object, *, progress: ProgressSink, **rest: object) -> Any:
        if seen is not None:
            seen.append(request)
        sys.stdout.write("a library's own line\n")
        os.write(1, b"a compiler's own line\n")
        logging.getLogger("bcd_tuner.rounds").warning("a candidate [crashed]")
        progress(ProgressEvent("tune", "round 1", elapsed_s=1))
        return result

    return run


def test_tune_json_is_all_there_is_on_stdout(
    invoke: Invoke, session: Callable[[Run], None], model: str, capfd: pytest.CaptureFixture[str]
) -> None:
    session(_noisy(make_report()))
    result = invoke("tune", "--model", model, "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert set(found) >= TUNE_FIELDS
    assert set(found["time_s"]) == {"search", "build", "run", "other"}
    assert set(found["latency_ms"]) >= {"untuned", "tuned", "estimated_untuned", "estimated_tuned", "onnxruntime"}
    assert all(set(task) >= TASK_FIELDS for task in found["tasks"])
    assert found["schema"] == 1
    assert capfd.readouterr() == ("", "a compiler's own line\n")
    for line in ("a library's own line", "warning: a candidate [crashed]", "tune: round 1"):
        assert line in result.stderr


def test_tune_prints_a_table_for_people(invoke: Invoke, session: Callable[[Run], None], model: str) -> None:
    session(_noisy(make_report()))
    result = invoke("tune", "--model", model)
    assert result.exit_code == 0
    assert result.stdout.startswith("ppocr-det v6: 9 tasks, 3 exact; 96 trials\n")
    assert "ui --backend-store-uri sqlite:////" in result.stdout


def test_options_reach_the_session(invoke: Invoke, session: Callable[[Run], None], model: str) -> None:
    seen: list[TuneRequest] = []
    session(_noisy(make_report(), seen))
    options = [
        "--shape",
        "x=1,3,48,192",
        "--target",
        "x86-64-v3",
        "--trials",
        "7",
        "--time-budget",
        "5m",
        "--seed",
        "3",
        "--fresh",
    ]
    assert invoke("tune", "--model", model, *options).exit_code == 0
    (request,) = seen
    assert (request.seed, request.fresh) == (3, True)
    spec = request.spec
    assert (spec.source, spec.shapes, spec.target, spec.trials, spec.time_budget_s) == (
        model,
        {"x": (1, 3, 48, 192)},
        "x86-64-v3",
        7,
        300.0,
    )


def test_plan(invoke: Invoke, session: Callable[[Run], None], model: str) -> None:
    session(_noisy(make_plan()))
    found = json.loads(invoke("plan", "--model", model, "--json").stdout)
    assert {"schema", "trials", "tasks", "basis"} <= set(found)
    assert "nothing was run" in invoke("plan", "--model", model).stdout


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConfigError("no target", hint="try native"), 2),
        (errors.NetworkError("no network", hint="try a file"), 3),
        (errors.StoreUnavailable("no database", hint="try later"), 4),
        (errors.SchemaMismatch("old", hint="upgrade"), 4),
        (errors.MeasureError("no worker", hint="run doctor"), 5),
    ],
)
def test_known_errors_are_a_line_a_hint_and_a_code(
    invoke: Invoke, session: Callable[[Run], None], model: str, error: errors.BcdError, code: int
) -> None:
    session(_raising(error))
    result = invoke("tune", "--model", model, "--json")
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.splitlines()[-2:] == [f"error: {error.message}", f"hint: {error.hint}"]
    assert code in EXIT_CODES
    assert "Traceback" not in result.stderr


def test_a_line_break_in_a_name_does_not_break_the_line(invoke: Invoke, session: Callable[[Run], None], model: str) -> None:
    session(_raising(errors.NetworkError("cannot read a\nb.onnx", hint="try a file")))
    result = invoke("tune", "--model", model)
    assert result.stderr.splitlines()[-2:] == ["error: cannot read a b.onnx", "hint: try a file"]


def test_debug_shows_where(invoke: Invoke, session: Callable[[Run], None], model: str) -> None:
    session(_raising(errors.NetworkError("no network")))
    assert "Traceback" in invoke("tune", "--model", model, options=["--debug"]).stderr


def test_a_bug_is_a_line_and_a_file(invoke: Invoke, session: Callable[[Run], None], model: str, home: Path) -> None:
    session(_raising(ZeroDivisionError("over\nnothing")))
    result = invoke("tune", "--model", model)
    assert result.exit_code == 5
    assert "error: ZeroDivisionError: over nothing\n" in result.stderr
    (log,) = (home / "logs").iterdir()
    assert str(log) in result.stderr
    assert "Traceback" in log.read_text()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk(invoke: Invoke, session: Callable[[Run], None], model: str, home: Path, number: int) -> None:
    session(_raising(OSError(number, "full", "/home/net.so")))
    result = invoke("tune", "--model", model)
    assert (result.exit_code, result.stdout) == (4, "")
    assert result.stderr.splitlines()[-2:] == [
        "error: no space left for /home/net.so",
        "hint: free some space, then run the command again",
    ]
    assert not (home / "logs").exists()


def _raising(error: BaseException) -> Run:
    def run(*_: object, **__: object) -> Any:
        raise error

    return run


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_waits_for_the_next_step_and_comes_once(
    invoke: Invoke, session: Callable[[Run], None], model: str, number: signal.Signals
) -> None:
    reached: list[str] = []

    def run(request: TuneRequest, registry: object, *, progress: ProgressSink, **rest: object) -> TuneReport:
        signal.raise_signal(number)
        reached.append("in the compiler")
        with pytest.raises(KeyboardInterrupt):
            progress(ProgressEvent("tune", "round 1"))
        progress(ProgressEvent("tune", "ending"))
        return make_report(interrupted=True, checked=False)

    session(run)
    result = invoke("tune", "--model", model, "--json")
    assert reached == ["in the compiler"]
    assert result.exit_code == 130
    assert json.loads(result.stdout)["interrupted"] is True


def test_interrupt_that_the_session_does_not_catch(invoke: Invoke, session: Callable[[Run], None], model: str) -> None:
    def run(request: TuneRequest, registry: object, *, progress: ProgressSink, **rest: object) -> None:
        signal.raise_signal(signal.SIGINT)
        progress(ProgressEvent("read", "reading"))

    session(run)
    result = invoke("plan", "--model", model)
    assert (result.exit_code, result.stdout) == (130, "")
    assert "interrupted\n" in result.stderr
    assert "Traceback" not in result.stderr


def test_interrupt_after_the_last_step_does_not_spoil_the_result(
    invoke: Invoke, session: Callable[[Run], None], model: str
) -> None:
    def run(*_: object, **__: object) -> TuneReport:
        signal.raise_signal(signal.SIGINT)
        return make_report()

    session(run)
    assert invoke("tune", "--model", model).exit_code == 0


def test_interrupt_elsewhere_comes_at_once(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bcd_registry.settings.upgrade_catalog", lambda settings: signal.raise_signal(signal.SIGINT))
    assert invoke("db", "upgrade").exit_code == 130


def test_a_network_that_differs_fails(invoke: Invoke, session: Callable[[Run], None], model: str) -> None:
    session(_noisy(make_report(checked=False)))
    result = invoke("tune", "--model", model)
    assert result.exit_code == 5
    assert "NOT EQUAL" in result.stdout


def test_signal_handlers_are_put_back(invoke: Invoke) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    invoke("db", "current")
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_unknown_model_offers_the_nearest(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "bcd-registry.toml").write_text('[networks.ppocr]\nsource = "a.onnx"\n')
    result = invoke("tune", "--model", "ppocrr")
    assert result.exit_code == 2
    assert "'ppocr'" in result.stderr


def test_broken_toml_names_the_line(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "bcd-registry.toml").write_text("[networks.a]\nsource = \n")
    result = invoke("networks", "list")
    assert result.exit_code == 2
    assert "2" in result.stderr.splitlines()[0]


def test_home_that_is_a_file(invoke: Invoke, home: Path) -> None:
    home.write_text("in the way")
    result = invoke("networks", "list")
    assert result.exit_code == 4
    assert result.stderr.startswith("error: ")


def test_db(invoke: Invoke, home: Path) -> None:
    assert "not made yet" in invoke("db", "current").stdout
    assert not home.exists()
    assert "none -> " in invoke("db", "upgrade").stdout
    assert "as it was" in invoke("db", "upgrade").stdout
    found = json.loads(invoke("db", "current", "--json").stdout)
    assert found["revision"] == found["needed"]


def test_networks_and_records(invoke: Invoke, home: Path) -> None:
    with open_registry(load_settings(home=home)) as registry:
        record = fill_registry(registry)
    assert "net:v1" in invoke("networks", "list").stdout
    assert json.loads(invoke("networks", "list", "--json").stdout)["tuned"][0]["n_tasks"] == 1

    shown = invoke("networks", "show", "net").stdout
    assert "conv2d+relu" in shown
    assert "32 trials in 16.0 s" in shown
    assert json.loads(invoke("networks", "show", "net:v1", "--json").stdout)["tasks"][0]["weight"] == 3

    listed = invoke("records", "list", "--network", "net").stdout
    assert record.id[:8] in listed
    assert max(map(len, listed.splitlines())) <= 80
    assert len(json.loads(invoke("records", "list", "--workload", "ab", "--json").stdout)["records"]) == 1

    one = invoke("records", "show", record.id[:6]).stdout
    assert "1.10 ms" in one
    assert "SamplePerfectTile [4, 14]" in one
    assert json.loads(invoke("records", "show", record.id[:6], "--json").stdout)["trace"] == [["SamplePerfectTile", [4, 14]]]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["networks", "show", "nte"], 2), (["records", "show", "ffff"], 4), (["records", "list", "--network", "nope"], 2)],
)
def test_what_is_not_there(invoke: Invoke, home: Path, arguments: list[str], code: int) -> None:
    with open_registry(load_settings(home=home)) as registry:
        fill_registry(registry)
    result = invoke(*arguments)
    assert result.exit_code == code
    assert result.stderr.startswith("error: ")


def test_what_is_shown_for_mlflow_can_be_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _runnable("http://mlflow.example.org:5000") == "http://mlflow.example.org:5000"
    monkeypatch.setenv("PATH", "")
    assert _runnable(f"{Path(sys.executable).name} ui") == f"{sys.executable} ui"
    assert _runnable("no-such-program ui") == "no-such-program ui"
