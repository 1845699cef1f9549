from __future__ import annotations

import json
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

from bcd_cli import checks
from bcd_cli.checks import Answer, Check, run_checks
from bcd_cli.state import State
from bcd_registry.settings import CATALOG_FILE
from tests.cli.conftest import Invoke

GOOD: dict[str, dict[str, Any]] = {
    "versions": {
        "tvm": "0.27.0.post1",
        "tvm_ffi": "0.1.14.post1",
        "numpy": "2.4.6",
        "xgboost": "3.2.0",
        "onnx": "1.23.2",
        "mlflow": "3.17.2",
        "onnxruntime": "1.32.0",
    },
    "round-trip": {"equal": True},
    "kernel": {"compiler": "/usr/bin/g++", "compiler_version": "g++ 12", "correct": True},
}


def _checks(home: Path, **changes: Answer | dict[str, Any]) -> dict[str, Check]:
    answers = {question: Answer(values) for question, values in GOOD.items()}
    for question, change in changes.items():
        name = question.replace("_", "-")
        answers[name] = change if isinstance(change, Answer) else Answer({**GOOD[name], **change})
    return {check.name: check for check in run_checks(State(home=home), answers.__getitem__)}


def test_all_is_well(home: Path) -> None:
    found = _checks(home)
    assert {check.status for name, check in found.items() if name != "cores"} == {"ok"}


@pytest.mark.parametrize("version", ["0.1.15", "0.1.15.post2", "0.2.0", "0.1.13"])
def test_the_ffi_that_crashes(home: Path, version: str) -> None:
    check = _checks(home, versions={"tvm_ffi": version})["tvm_ffi"]
    assert (check.status, check.exit_code) == ("fail", 5)
    assert "<0.1.15" in check.hint


def test_other_compiler_release(home: Path) -> None:
    assert _checks(home, versions={"tvm": "0.28.0"})["tvm"].status == "fail"


def test_missing_libraries(home: Path) -> None:
    found = _checks(home, versions={"onnxruntime": None, "xgboost": None, "xgboost_error": "libgomp.so.1: no such file"})
    assert found["onnxruntime"].status == "warn"
    assert (found["xgboost"].status, found["xgboost"].detail) == ("fail", "libgomp.so.1: no such file")


def test_what_a_crash_in_the_child_looks_like(home: Path) -> None:
    check = _checks(home, round_trip=Answer(None, "crashed with SIGSEGV"))["serialisation"]
    assert (check.status, check.detail) == ("fail", "crashed with SIGSEGV")
    assert "apache-tvm-ffi" in check.hint


def test_no_compiler_and_wrong_results(home: Path) -> None:
    assert "g++" in _checks(home, kernel={"compiler": None, "correct": False})["build and run"].hint
    assert _checks(home, kernel={"correct": False})["build and run"].status == "fail"


def test_home_in_the_way(home: Path) -> None:
    home.write_text("a file")
    found = _checks(home)
    assert (found["home"].status, found["home"].exit_code) == ("fail", 4)


def test_database_of_a_newer_release(home: Path, invoke: Invoke) -> None:
    invoke("db", "upgrade")
    connection = sqlite3.connect(home / CATALOG_FILE)
    with connection:
        connection.execute("UPDATE bcd_alembic_version SET version_num = '9999'")
    connection.close()
    check = _checks(home)["database"]
    assert (check.status, check.exit_code) == ("fail", 4)
    assert "9999" in check.detail


def _fake_child(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str) -> None:
    """Let `python -W ignore -m bcd_tuner.probe` be a script of ours."""
    script = tmp_path / "python"
    script.write_text(f"#!{sys.executable}\nimport os, signal, sys\n{body}\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "crashed with SIGSEGV"),
        ("sys.exit('first\\nImportError: no libLLVM')", "ImportError: no libLLVM"),
        ("os._exit(3)", "failed without a word"),
        ("signal.pause()", "no answer after 1 s"),
    ],
)
def test_children_that_fail(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str, problem: str) -> None:
    _fake_child(monkeypatch, tmp_path, body)
    assert checks.ask("kernel", timeout_s=1.0) == Answer(None, problem)


def test_child_that_talks_before_it_answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _fake_child(monkeypatch, tmp_path, "print('LLVM says hello')\nprint('{\"equal\": true}')")
    assert checks.ask("round-trip") == Answer({"equal": True})


def test_exit_code_is_that_of_the_first_failure(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Check("a", "ok", ""), Check("b", "fail", "", "", 4), Check("c", "fail", "", "", 5)]
    monkeypatch.setattr(checks, "run_checks", lambda state: found)
    assert invoke("doctor").exit_code == 4
    answer = json.loads(invoke("doctor", "--json").stdout)
    assert answer["ok"] is False
    assert [check["status"] for check in answer["checks"]] == ["ok", "fail", "fail"]


def test_for_real(invoke: Invoke) -> None:
    result = invoke("doctor", "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["ok"]) == (0, True)
    assert {check["name"] for check in found["checks"]} >= {"tvm", "serialisation", "build and run", "home", "database"}
