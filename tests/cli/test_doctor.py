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
from bcd_registry.settings import CATALOG_FILE, load_settings, open_registry
from infra import programs
from infra.identity import USER
from infra.local_stack import LocalStack
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


def _checks(home: Path, *, read_only: bool = False, **changes: Answer | dict[str, Any]) -> dict[str, Check]:
    answers = {question: Answer(values) for question, values in GOOD.items()}
    for question, change in changes.items():
        name = question.replace("_", "-")
        answers[name] = change if isinstance(change, Answer) else Answer({**GOOD[name], **change})
    return {check.name: check for check in run_checks(State(home=home, read_only=read_only), answers.__getitem__)}


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


RIGHTS = ["database", "database read", "database write", "blobs put", "blobs get", "blobs list", "blobs delete"]


def _make_registry(home: Path) -> None:
    with open_registry(load_settings(home=home)):
        pass


def test_rights_in_an_embedded_registry(home: Path) -> None:
    _make_registry(home)
    found = _checks(home)
    assert [found[name].status for name in RIGHTS] == ["ok"] * len(RIGHTS)
    assert found["database"].detail.startswith(f"{home / CATALOG_FILE}: revision")
    assert found["blobs put"].detail == str(home / "blobs")
    assert [path for path in (home / "blobs").rglob("*") if path.is_file()] == []


def test_what_is_read_only_is_not_written(home: Path) -> None:
    _make_registry(home)
    found = _checks(home, read_only=True)
    assert found["database write"].detail == "not tried: the registry is read-only"
    assert [found[name].status for name in ("database read", "blobs get", "blobs list")] == ["ok"] * 3
    assert not {"blobs put", "blobs delete"} & set(found)
    assert not (home / "blobs").exists()


def test_a_registry_that_is_off(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BCD_REGISTRY", "off")
    found = _checks(home)
    assert found["database"].detail == "the registry is switched off"
    assert not set(RIGHTS[1:]) & set(found)


@pytest.fixture
def team(stack: LocalStack, postgres_url: str, s3_prefix: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A team's registry, made; its database's name."""
    for name, value in stack.identity.s3_credentials.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("BCD_DATABASE_URL", postgres_url)
    monkeypatch.setenv("BCD_BLOBS_URL", s3_prefix)
    monkeypatch.setenv("BCD_S3_ENDPOINT_URL", stack.identity.s3_endpoint)
    _make_registry(home)
    return postgres_url.rpartition("/")[2]


def test_rights_in_a_team_s_registry(team: str, home: Path, stack: LocalStack) -> None:
    found = _checks(home)
    assert [found[name].status for name in RIGHTS] == ["ok"] * len(RIGHTS)
    assert stack.identity.password not in str(found)
    assert stack.identity.secret_key not in str(found)
    assert stack.identity.s3_endpoint in found["blobs put"].detail


def test_a_role_that_may_only_read(team: str, home: Path, stack: LocalStack, monkeypatch: pytest.MonkeyPatch) -> None:
    role = f"reader_{team}"
    with programs.connect(stack.identity) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'readerspassword'")
        connection.execute(f"GRANT pg_read_all_data TO {role}")
    url = stack.identity.database_url(team).replace(f"{USER}:{stack.identity.password}", f"{role}:readerspassword")
    monkeypatch.setenv("BCD_DATABASE_URL", url)
    found = _checks(home)
    assert [found[name].status for name in RIGHTS[:3]] == ["ok", "ok", "fail"]
    assert (role in found["database write"].detail, found["database write"].exit_code) == (True, 4)
    assert "readerspassword" not in str(found)


def test_a_wrong_secret_of_the_bucket(team: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nobodyssecret")
    found = _checks(home)
    assert [found[name].status for name in RIGHTS] == ["ok"] * 3 + ["fail"] * 4
    assert "nobodyssecret" not in str(found)


def test_servers_that_do_not_answer_are_asked_once(team: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BCD_DATABASE_URL", "postgresql://u:nobodyssecret@127.0.0.1:1/db")
    monkeypatch.setenv("BCD_S3_ENDPOINT_URL", "http://127.0.0.1:1")
    found = _checks(home)
    assert [name for name in RIGHTS if name in found] == ["database", "blobs put"]
    assert "127.0.0.1:1" in found["database"].detail
    assert "http://127.0.0.1:1" in found["blobs put"].detail
    assert "nobodyssecret" not in str(found)


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
