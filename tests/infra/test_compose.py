"""The team's compose file: health checks, named volumes, pinned images, and no secret but the team's own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra import programs
from infra.local_stack import LocalStack

INFRA = Path(programs.__file__).parent
COMPOSE = INFRA / "compose.yaml"
README = (INFRA / "README.md").read_text(encoding="utf-8")
TEXT = COMPOSE.read_text(encoding="utf-8")
SECRET = re.compile(r"PASSWORD|SECRET|KEY|TOKEN")


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load(TEXT)["services"]
    return found


def variables() -> dict[str, str]:
    """What stands behind the name of every variable that the file reads."""
    found: dict[str, str] = {}
    for name, rest in re.findall(r"\$\{(\w+)([^}]*)\}", TEXT):
        assert found.setdefault(name, rest) == rest
    return found


def has_compose() -> bool:
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0


def test_the_three_servers_are_there(services: dict[str, dict[str, Any]]) -> None:
    assert set(services) == {"postgres", "seaweedfs", "mlflow"}
    assert services["mlflow"]["depends_on"] == {name: {"condition": "service_healthy"} for name in ("postgres", "seaweedfs")}


def test_every_server_has_a_health_check_and_comes_back(services: dict[str, dict[str, Any]]) -> None:
    for service in services.values():
        assert service["healthcheck"]["test"][0] == "CMD"
        assert {"interval", "timeout", "retries"} <= set(service["healthcheck"])
        assert service["restart"] == "unless-stopped"


def test_images_are_pinned_to_a_release(services: dict[str, dict[str, Any]]) -> None:
    for service in services.values():
        assert re.search(r":v?\d+\.\d+[\w.-]*$", service["image"])
    weed = subprocess.run([programs.weed_path(), "version"], capture_output=True, text=True, check=True).stdout
    assert services["seaweedfs"]["image"].partition(":")[2] in weed


def test_data_lies_in_named_volumes(services: dict[str, dict[str, Any]]) -> None:
    mounts = [mount.split(":") for name in ("postgres", "seaweedfs") for mount in services[name]["volumes"]]
    named = {mount[0] for mount in mounts if not mount[0].startswith(".")}
    assert named == set(yaml.safe_load(TEXT)["volumes"])
    assert {mount[1] for mount in mounts if mount[0] in named} == {"/var/lib/postgresql/data", "/data"}
    for source, _, mode in (mount for mount in mounts if mount[0] not in named):
        assert (INFRA / source).is_file()
        assert mode == "ro"


def test_there_is_no_default_secret(services: dict[str, dict[str, Any]]) -> None:
    assert {name for name, rest in variables().items() if rest.startswith(":?")} == {n for n in variables() if SECRET.search(n)}
    for service in services.values():
        for name, value in service["environment"].items():
            assert not SECRET.search(name) or re.fullmatch(r"\$\{\w+:\?[^}]+\}", value)
            assert "@" not in value or re.search(r"://\w+:\$\{\w+:\?[^}]+\}@", value)


def test_ports_are_published_on_loopback_by_default(services: dict[str, dict[str, Any]]) -> None:
    published = [port for service in services.values() for port in service["ports"]]
    assert len(published) == 3
    assert all(port.startswith("${BCD_LISTEN:-127.0.0.1}:") for port in published)


def test_the_s3_server_runs_with_the_flags_that_the_tests_run_it_with(services: dict[str, dict[str, Any]]) -> None:
    flags = set(services["seaweedfs"]["command"])
    assert {f"-{name}={value}" for name, value in programs._S3_OPTIONS.items()} <= flags


def test_the_readme_names_every_variable() -> None:
    assert [name for name in variables() if name not in README] == []


def test_the_databases_script_gives_each_user_one_database_alone(stack: LocalStack) -> None:
    """On the real server, with the script's names changed so that the stack's own database stays as it is."""
    import psycopg

    script = (INFRA / "databases.sh").read_text(encoding="utf-8")
    for name in ("bcd", "mlflow"):
        script = re.sub(rf"\b{name}\b", f"{name}_team", script)
    passwords = {"BCD_DATABASE_PASSWORD": "it's 1", "MLFLOW_DATABASE_PASSWORD": 'a "quoted" $2'}
    where = {
        "PGHOST": "127.0.0.1",
        "PGPORT": str(stack.postgres.port),
        "PGPASSWORD": stack.identity.password,
        "POSTGRES_USER": "bcd",
    }
    done = subprocess.run(
        ["sh", "-c", script],
        env={"PATH": f"{programs.postgres_folder()}{os.pathsep}{os.environ['PATH']}", **where, **passwords},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    def log_in(user: str, database: str, password: str) -> str:
        with psycopg.connect(
            host="127.0.0.1", port=stack.postgres.port, user=user, dbname=database, password=passwords[password]
        ) as connection:
            connection.execute("CREATE TABLE mine (id INTEGER)")
            return str(connection.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user").fetchall())

    try:
        assert log_in("bcd_team", "bcd_team", "BCD_DATABASE_PASSWORD") == "[(False,)]"
        assert log_in("mlflow_team", "mlflow_team", "MLFLOW_DATABASE_PASSWORD") == "[(False,)]"
        with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
            log_in("mlflow_team", "bcd_team", "MLFLOW_DATABASE_PASSWORD")
    finally:
        with programs.connect(stack.identity) as connection:
            for name in ("bcd_team", "mlflow_team"):
                connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
                connection.execute(f"DROP ROLE IF EXISTS {name}")


@pytest.mark.skipif(not has_compose(), reason="docker compose is not installed")
def test_compose_accepts_the_file_only_with_every_secret() -> None:
    command = ["docker", "compose", "--env-file", os.devnull, "--file", str(COMPOSE), "config", "--quiet"]
    required = {name: "0123abcd" for name, rest in variables().items() if rest.startswith(":?")}

    def check(secrets: dict[str, str]) -> subprocess.CompletedProcess[str]:
        values = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **secrets}
        return subprocess.run(command, env=values, capture_output=True, text=True, check=False)

    accepted = check(required)
    assert accepted.returncode == 0, accepted.stderr
    for name in required:
        refused = check({other: value for other, value in required.items() if other != name})
        assert refused.returncode != 0
        assert name in refused.stderr
