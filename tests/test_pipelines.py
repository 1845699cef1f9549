"""The pipelines of docs/pipelines run as they stand: their shell steps, job by job, on real servers."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from onnx import TensorProto, helper, numpy_helper
from sqlalchemy import MetaData, create_engine, select
from sqlalchemy.engine import make_url

from bcd_registry.frozen import load_lock
from bcd_registry.settings import load_settings
from bcd_registry.stores import open_blobs
from infra import programs
from infra.identity import BUCKET
from infra.local_stack import LocalStack

PIPELINES = Path(__file__).parents[1] / "docs" / "pipelines"
CONFIG = """
[defaults]
trials = 2

[networks.v1]
name = "layer"
version = "v1"
source = "v1.onnx"

[networks.v2]
name = "layer"
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
        Job(stage, ("\n".join(pipeline[stage]["script"]),), {**pipeline["variables"], **pipeline[stage].get("variables", {})})
        for stage in pipeline["stages"]
    ]


JOBS = {"github": jobs_of_github(), "gitlab": jobs_of_gitlab()}


def write_layer(path: Path, size: int) -> None:
    """A dense layer."""
    weights = np.random.default_rng(0).standard_normal((size, size)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["y"])],
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, size])],
        [numpy_helper.from_array(weights, "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), str(path))


@dataclass(frozen=True)
class Team:
    """A project in whose registry v1 is published.

    Attributes:
        checkout: Its repository.
        settings: The variables and secrets of the project.
    """

    checkout: Path
    settings: Mapping[str, str]


@pytest.fixture(scope="module")
def v1_team(stack: LocalStack, mlflow_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    """v1 was tuned by an earlier job. v2 is by far the smaller network, so that no noise makes it the slower one."""
    checkout = tmp_path_factory.mktemp("team") / "checkout"
    checkout.mkdir()
    (checkout / "bcd-registry.toml").write_text(CONFIG)
    write_layer(checkout / "v1.onnx", 384)
    write_layer(checkout / "v2.onnx", 48)
    with made_database(stack, "template0") as name:
        settings = {
            **stack.environment,
            "BCD_DATABASE_URL": stack.identity.database_url(name),
            "BCD_BLOBS_URL": f"s3://{BUCKET}/{name}",
            "BCD_MLFLOW_TRACKING_URI": mlflow_url,
        }
        run(Job("v1", ("bcd-registry tune --model v1",), {}), Team(checkout, settings), inherits=True)
        yield Team(checkout, settings)


@pytest.fixture
def team(stack: LocalStack, v1_team: Team, tmp_path: Path) -> Iterator[Team]:
    """The same with rows of its own, and with a role that may only read them."""
    template = make_url(v1_team.settings["BCD_DATABASE_URL"]).database
    role, password = f"reader_{secrets.token_hex(4)}", secrets.token_hex(8)
    with made_database(stack, str(template)) as name:
        url = stack.identity.database_url(name)
        with programs.connect(stack.identity) as connection:
            connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{password}'")
            connection.execute(f"GRANT pg_read_all_data TO {role}")
        settings = {
            **v1_team.settings,
            "BCD_DATABASE_URL": url,
            "BCD_READER_DATABASE_URL": make_url(url)
            .set(username=role, password=password)
            .render_as_string(hide_password=False),
            "BCD_READER_ACCESS_KEY_ID": v1_team.settings["AWS_ACCESS_KEY_ID"],
            "BCD_READER_SECRET_ACCESS_KEY": v1_team.settings["AWS_SECRET_ACCESS_KEY"],
        }
        yield Team(Path(shutil.copytree(v1_team.checkout, tmp_path / "checkout")), settings)
        with programs.connect(stack.identity) as connection:
            connection.execute(f"DROP ROLE {role}")


@contextmanager
def made_database(stack: LocalStack, template: str) -> Iterator[str]:
    """A database's name, which goes with the block."""
    name = f"test_{secrets.token_hex(6)}"
    with programs.connect(stack.identity) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
    yield name
    with programs.connect(stack.identity) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def run(job: Job, team: Team, *, inherits: bool) -> tuple[Path, str]:
    """The job in a runner that has nothing but a checkout, and an empty home; the folder that it leaves, and what it printed.

    Args:
        inherits: Whether the project's settings are variables of each job, as GitLab makes them.
    """
    folder = team.checkout.parent / job.name
    work = Path(shutil.copytree(team.checkout, folder / "work"))
    settings, printed = team.settings, []
    machine = {name: value for name, value in os.environ.items() if not name.startswith(("BCD_", "AWS_", "XDG_"))}
    variables = {
        **machine,
        **(settings if inherits else {}),
        **{name: _VARIABLE.sub(lambda found: settings[found[1] or found[2]], text) for name, text in job.variables.items()},
        "HOME": str(folder / "home"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "GITHUB_STEP_SUMMARY": str(work / "gate.md"),
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    for script in job.scripts:
        shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
        done = subprocess.run(shell, cwd=work, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{script}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        printed.append(done.stdout)
    return work, "".join(printed)


def everything(settings: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Every row of the database, and every blob."""
    engine = create_engine(settings["BCD_DATABASE_URL"])
    tables = MetaData()
    tables.reflect(engine)
    with engine.connect() as connection:
        rows = {name: sorted(map(repr, connection.execute(select(table)))) for name, table in tables.tables.items()}
    engine.dispose()
    with monkeypatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        with open_blobs(load_settings(), ask=False) as blobs:
            return {**rows, "blobs": sorted(blob.digest for blob in blobs.iter_blobs())}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("service", JOBS)
def test_from_v1_to_v2(service: str, team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    review, release = JOBS[service]
    assert (review.name, release.name) == ("review", "release")
    before = everything(team.settings, monkeypatch)
    _, shown = run(review, team, inherits=service == "gitlab")
    assert everything(team.settings, monkeypatch) == before
    assert "layer v2: " in shown
    assert "NOT PASSED" in shown

    left, shown = run(release, team, inherits=service == "gitlab")
    assert "http://127.0.0.1" in shown
    manifest = json.loads((left / "v2" / "manifest.json").read_text())
    assert (manifest["network"], manifest["version"]) == ("layer", "v2")
    assert {task.record for task in load_lock(left / "bcd.lock").tasks}
    assert "## layer v2 against v1: passed" in (left / "gate.md").read_text()
    suite = ET.parse(left / "gate.xml").getroot()[0]  # noqa: S314 - written by the command
    assert (suite.get("tests"), suite.get("failures")) == ("3", "0")
    assert "<html" in (left / "v1-v2.html").read_text()
    after = everything(team.settings, monkeypatch)
    assert len(after["bcd_networks"]) == len(before["bcd_networks"]) + 1
    assert set(before["blobs"]) <= set(after["blobs"])


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
        return [" ".join(line.split()) for line in text.splitlines() if line.strip()]

    assert [commands(job) for job in JOBS["github"]] == [commands(job) for job in JOBS["gitlab"]]
