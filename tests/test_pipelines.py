"""The pipelines of docs/pipelines run as they stand: their shell steps, job by job, on real servers."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import MetaData, create_engine, select
from sqlalchemy.engine import make_url

from bcd_registry.model import RecordState
from bcd_registry.settings import load_settings, open_registry
from bcd_registry.stores import open_blobs
from infra import programs
from infra.local_stack import LocalStack
from tests.tuner.published_networks import write_network

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PIPELINES = Path(__file__).parents[1] / "docs" / "pipelines"
CONFIG = """
[defaults]
trials = 4

[networks.v1]
name = "tiny"
version = "v1"
source = "v1.onnx"

[networks.v2]
name = "tiny"
version = "v2"
source = "v2.onnx"
"""
_VARIABLE = re.compile(r"\$\{\{ (?:vars|secrets)\.(\w+) \}\}|\$(\w+)")


@dataclass(frozen=True)
class Job:
    """What a runner does in one job.

    Attributes:
        scripts: Each is given to a shell of its own, after the one before has succeeded.
        variables: What the file sets, as it is written there.
    """

    name: str
    scripts: tuple[str, ...]
    variables: Mapping[str, str]


def jobs_of_github() -> list[Job]:
    """The jobs without the steps of actions, and without the installation."""
    workflow = yaml.safe_load((PIPELINES / "github-actions.yml").read_text(encoding="utf-8"))
    return [
        Job(
            name,
            tuple(step["run"] for step in job["steps"] if "uses" not in step and step["name"] != "Install"),
            {**workflow["env"], **job["env"]},
        )
        for name, job in workflow["jobs"].items()
    ]


def jobs_of_gitlab() -> list[Job]:
    """The jobs without `before_script`, which installs; all lines of a script share a shell there."""
    pipeline = yaml.safe_load((PIPELINES / "gitlab-ci.yml").read_text(encoding="utf-8"))
    return [
        Job(stage, ("\n".join(pipeline[stage]["script"]),), pipeline[stage].get("variables", {}))
        for stage in pipeline["stages"]
    ]


JOBS = {"github": jobs_of_github(), "gitlab": jobs_of_gitlab()}


@pytest.fixture
def reader_url(stack: LocalStack, postgres_url: str) -> Iterator[str]:
    """The database for a role that may only read it."""
    role, password = f"reader_{secrets.token_hex(4)}", secrets.token_hex(8)
    with programs.connect(stack.identity) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{password}'")
        connection.execute(f"GRANT pg_read_all_data TO {role}")
    yield make_url(postgres_url).set(username=role, password=password).render_as_string(hide_password=False)
    with programs.connect(stack.identity) as connection:
        connection.execute(f"DROP ROLE {role}")


@pytest.fixture
def project(stack: LocalStack, postgres_url: str, reader_url: str, s3_prefix: str, mlflow_url: str) -> Mapping[str, str]:
    """What the project's settings hold: variables and secrets."""
    keys = stack.environment
    return {
        **keys,
        "BCD_DATABASE_URL": postgres_url,
        "BCD_BLOBS_URL": s3_prefix,
        "BCD_MLFLOW_TRACKING_URI": mlflow_url,
        "BCD_READER_DATABASE_URL": reader_url,
        "BCD_READER_ACCESS_KEY_ID": keys["AWS_ACCESS_KEY_ID"],
        "BCD_READER_SECRET_ACCESS_KEY": keys["AWS_SECRET_ACCESS_KEY"],
    }


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The team's repository: v2 is by far the smaller network, so that no noise makes it the slower one."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "bcd-registry.toml").write_text(CONFIG)
    write_network(folder / "v1.onnx", size=48)
    write_network(folder / "v2.onnx", size=8)
    return folder


def run(job: Job, checkout: Path, project: Mapping[str, str], *, inherits: bool) -> Path:
    """The job in a runner that has nothing but a checkout, and an empty home; the folder that it leaves.

    Args:
        inherits: Whether the project's settings are variables of each job, as GitLab makes them.
    """
    folder = checkout.parent / job.name
    shutil.copytree(checkout, folder / "work")
    machine = {name: value for name, value in os.environ.items() if not name.startswith(("BCD_", "AWS_", "XDG_"))}
    variables = {
        **machine,
        **(project if inherits else {}),
        **{name: _VARIABLE.sub(lambda found: project[found[1] or found[2]], text) for name, text in job.variables.items()},
        "HOME": str(folder / "home"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "GITHUB_STEP_SUMMARY": str(folder / "work" / "gate.md"),
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    for script in job.scripts:
        shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
        done = subprocess.run(shell, cwd=folder / "work", env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{script}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        print(done.stdout, done.stderr, sep="\n")
    return folder / "work"


def everything(project: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Every row of the database, and every blob."""
    engine = create_engine(project["BCD_DATABASE_URL"])
    tables = MetaData()
    tables.reflect(engine)
    with engine.connect() as connection:
        rows = {name: sorted(map(repr, connection.execute(select(table)))) for name, table in tables.tables.items()}
    engine.dispose()
    with monkeypatch.context() as patch:
        for name, value in project.items():
            patch.setenv(name, value)
        with open_blobs(load_settings(), ask=False) as blobs:
            return {**rows, "blobs": sorted(blob.digest for blob in blobs.iter_blobs())}


@pytest.mark.parametrize("service", JOBS)
def test_from_v1_to_v2(
    service: str,
    checkout: Path,
    project: Mapping[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    review, release = JOBS[service]
    assert (review.name, release.name) == ("review", "release")
    inherits = service == "gitlab"
    run(Job("v1", ("bcd-registry tune --model v1",), {}), checkout, project, inherits=True)

    before = everything(project, monkeypatch)
    capsys.readouterr()
    run(review, checkout, project, inherits=inherits)
    shown = capsys.readouterr().out
    assert everything(project, monkeypatch) == before
    assert "tiny v2: " in shown
    assert "NOT PASSED" in shown

    left = run(release, checkout, project, inherits=inherits)
    assert (left / "v2" / "manifest.json").is_file()
    assert (left / "bcd.lock").is_file()
    assert "passed" in (left / "gate.md").read_text()
    suite = ET.parse(left / "gate.xml").getroot()[0]  # noqa: S314 - written by the command
    assert (suite.get("tests"), suite.get("failures")) == ("3", "0")
    assert "<html" in (left / "v1-v2.html").read_text()
    monkeypatch.setenv("BCD_DATABASE_URL", project["BCD_DATABASE_URL"])
    with open_registry(load_settings(home=checkout.parent / "reader", read_only=True)) as registry:
        assert [network.version for network in registry.list_networks()] == ["v1", "v2"]
        assert RecordState.PUBLISHED in {record.state for record in registry.list_records()}


@pytest.mark.parametrize("service", JOBS)
def test_what_is_published_with_is_kept_from_pull_requests(service: str) -> None:
    review, release = JOBS[service]
    assert "secrets.BCD_DATABASE_URL" not in str(review.variables)
    assert {"BCD_DATABASE_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} <= set(review.variables)
    commands = [line for script in review.scripts for line in script.splitlines()]
    assert [line for line in commands if not line.startswith("bcd-registry --read-only ")] == []
    assert "READER" not in str(release.variables)


def test_the_two_services_do_the_same() -> None:
    """What may differ is where the gate's summary goes."""

    def commands(job: Job) -> list[str]:
        text = "\n".join(job.scripts).replace("\\\n", " ").replace('"$GITHUB_STEP_SUMMARY"', "gate.md")
        return [" ".join(line.split()) for line in text.splitlines()]

    assert [commands(job) for job in JOBS["github"]] == [commands(job) for job in JOBS["gitlab"]]
