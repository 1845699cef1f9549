"""The installed program as a process: what only a real one shows."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from bcd_registry.settings import load_settings, open_registry
from tests.cli.values import fill_registry

PROGRAM = [sys.executable, "-m", "bcd_cli"]


def _run(*arguments: str, cwd: Path, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [*PROGRAM, "--home", str(cwd / "home"), *arguments]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("BCD_")}
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env={**clean, **(env or {})})


def _assert_refused(done: subprocess.CompletedProcess[str], code: int) -> str:
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert "Traceback" not in done.stderr
    problems = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(problems) == 1
    return problems[0]


def test_script_is_installed() -> None:
    assert shutil.which("bcd-registry", path=str(Path(sys.executable).parent))


def test_closed_pipe_ends_quietly(tmp_path: Path) -> None:
    with open_registry(load_settings(home=tmp_path / "home")) as registry:
        fill_registry(registry)
    for arguments in (["records", "list"], ["records", "list", "--json"]):
        reading, writing = os.pipe()
        os.close(reading)
        command = [*PROGRAM, "--home", str(tmp_path / "home"), *arguments]
        with os.fdopen(writing, "wb") as stdout:
            done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("content", "code"),
    [(None, 3), (b"this is no model", 3)],
    ids=["missing", "text"],
)
def test_models_that_cannot_be_read(tmp_path: Path, content: bytes | None, code: int) -> None:
    if content is not None:
        (tmp_path / "net.onnx").write_bytes(content)
    assert "net.onnx" in _assert_refused(_run("tune", "--model", "net.onnx", "--json", cwd=tmp_path), code)


def test_target_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(b"")
    done = _run("tune", "--model", "net.onnx", "--target", "pentium9", cwd=tmp_path)
    assert "pentium9" in _assert_refused(done, 2)


def test_variable_that_is_wrong(tmp_path: Path) -> None:
    assert "BCD_WORKERS" in _assert_refused(_run("networks", "list", cwd=tmp_path, env={"BCD_WORKERS": "many"}), 2)


def test_home_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "home").symlink_to("/proc/nowhere")
    assert "/home" in _assert_refused(_run("networks", "list", cwd=tmp_path), 4)


SECOND_INTERRUPT = """
import signal
from bcd_cli.interrupts import Interrupts
interrupts = Interrupts()
with interrupts.handled(), interrupts.deferred(print):
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGTERM)
    print("not reached")
"""


def test_second_interrupt_ends_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", SECOND_INTERRUPT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (130, "")
    assert "again stops at once" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
@pytest.mark.parametrize("arguments", [["records", "list"], ["records", "list", "--json"], ["stats"]], ids=" ".join)
def test_output_that_finds_no_space(tmp_path: Path, arguments: list[str]) -> None:
    with open_registry(load_settings(home=tmp_path / "home")) as registry:
        fill_registry(registry)
    command = [*PROGRAM, "--home", str(tmp_path / "home"), *arguments]
    with Path("/dev/full").open("wb") as stdout:
        done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 4
    assert done.stderr.splitlines() == [
        "error: no space left for the output, the home or temporary files",
        "hint: free some space, then run the command again",
    ]


def test_a_catalog_that_somebody_edited(tmp_path: Path) -> None:
    with open_registry(load_settings(home=tmp_path / "home")) as registry:
        fill_registry(registry)
    with contextlib.closing(sqlite3.connect(tmp_path / "home" / "catalog.db")) as connection, connection:
        for table, column in (("bcd_records", "decisions"), ("bcd_networks", "shapes"), ("bcd_runs", "report")):
            connection.execute(f"UPDATE {table} SET {column} = '{{'")
    for arguments in (["records", "list"], ["networks", "list"], ["stats"]):
        listed = _run(*arguments, cwd=tmp_path)
        assert (listed.returncode, "it is left out" in listed.stderr) == (0, True)
    assert "is damaged" in _assert_refused(_run("networks", "show", "net:v1", cwd=tmp_path), 4)
