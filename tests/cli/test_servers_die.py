"""kill -9 of a server in the middle of a whole tune: it ends well, says so, and nothing that it found is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bcd_registry.model import RecordState
from bcd_registry.settings import load_settings, open_registry
from infra.local_stack import LocalStack
from infra.servers import Server
from tests.tuner.test_session import write_network

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TRIALS = 4
_FIRST_RECORD_S = 180.0


@pytest.fixture
def team(
    stack: LocalStack, postgres_url: str, s3_prefix: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> Mapping[str, str]:
    """The variables of an empty registry, set for this process, too."""
    variables = {**stack.environment, "BCD_DATABASE_URL": postgres_url, "BCD_BLOBS_URL": s3_prefix, "BCD_HOME": str(home)}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return variables


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_network(tmp_path / "tiny.onnx", channels=8, classes=10)


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bcd_cli", *arguments]
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What it wrote; it must end well."""
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors[-2000:]
    return output, errors


def tune_while_it_dies(model: Path, server: Server) -> dict[str, Any]:
    """The report of a tune during which the server is killed, as soon as a first round is in the registry."""
    with open_registry(load_settings()) as registry:
        process = start("tune", "--model", str(model), "--trials", str(TRIALS), "--json")
        until = time.monotonic() + _FIRST_RECORD_S
        while not registry.list_records(limit=1):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < until
            time.sleep(0.02)
        server.kill()
    output, _ = finish(process)
    report: dict[str, Any] = json.loads(output)
    assert report["checked"], report["notes"]
    return report


def assert_spooled(report: Mapping[str, Any], home: Path) -> None:
    (note,) = [note for note in report["notes"] if note.startswith("results wait in ")]
    assert str(home / "spool" / report["run_id"]) in note
    assert "the next command publishes them, or `bcd-registry publish --spool`" in note
    assert list((home / "spool" / report["run_id"]).glob("*.json"))


def assert_published(report: Mapping[str, Any], home: Path) -> None:
    """Every task has its published record, every record reads back, and every blob that a row names is there."""
    assert not list((home / "spool").glob("*/*.json*"))
    with open_registry(load_settings()) as registry:
        records = registry.list_records(limit=10_000)
        assert len({record.id for record in records if record.run_id == report["run_id"]}) >= len(report["tasks"])
        published = {record.workload_key for record in records if record.state is RecordState.PUBLISHED}
        assert {task["workload_key"] for task in report["tasks"]} <= published
        assert all(registry.get_record(record.id).trace is not None for record in records)
        assert registry.named_blobs() <= {blob.digest for blob in registry.iter_blobs()}
        assert [run.id for run in registry.list_runs()] == [report["run_id"]]
        assert len(registry.list_networks()) == 1


def test_the_database_dies(team: Mapping[str, str], stack: LocalStack, home: Path, model: Path) -> None:
    report = tune_while_it_dies(model, stack.postgres)
    assert_spooled(report, home)
    stack.postgres.start()
    output, _ = finish(start("publish", "--spool"))
    assert report["run_id"][:8] in output
    assert_published(report, home)


def test_the_bucket_dies(team: Mapping[str, str], stack: LocalStack, home: Path, model: Path) -> None:
    report = tune_while_it_dies(model, stack.s3)
    assert_spooled(report, home)
    stack.s3.start()
    output, errors = finish(start("plan", "--model", str(model), "--trials", str(TRIALS), "--json"))
    assert f"published what run {report['run_id'][:8]} had spooled" in errors
    assert {task["grade"] for task in json.loads(output)["tasks"]} == {"exact"}
    assert_published(report, home)
