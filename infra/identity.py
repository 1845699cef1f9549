"""What a stack keeps in its folder: the same folder answers at the same ports, to the same secrets."""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from bcd_registry.errors import ConfigError

from .servers import HOST, is_free

USER = "bcd"
BUCKET = "bcd-registry"
REGION = "us-east-1"
S3_LISTENERS = ("s3", "master", "volume", "filer", "admin")
"""The parts of the S3 server; clients use the first."""

GRPC_OFFSET = 10_000
"""From a part's port to its second one. SeaweedFS lets the ports be chosen, but some of its parts look for each other there."""

_LISTENERS = ("postgres", "mlflow", *S3_LISTENERS)
_FILE = "stack.json"
_LOCK = "stack.lock"
_LOWEST_PORT = 10_000
_FIRST_CLIENT_PORT = 32_768


@dataclass(frozen=True, slots=True)
class Identity:
    """Ports and secrets of one stack.

    Attributes:
        ports: Loopback ports by what listens there.
        password: Of PostgreSQL's user.
        access_key: Names the S3 server's user.
        secret_key: That user's secret.
    """

    ports: Mapping[str, int]
    password: str
    access_key: str
    secret_key: str

    @property
    def s3_endpoint(self) -> str:
        """URL of the S3 server."""
        return f"http://{HOST}:{self.ports['s3']}"

    @property
    def s3_credentials(self) -> dict[str, str]:
        """The variables that S3 clients read."""
        return {"AWS_ACCESS_KEY_ID": self.access_key, "AWS_SECRET_ACCESS_KEY": self.secret_key, "AWS_REGION": REGION}

    @property
    def mlflow_url(self) -> str:
        """URL of the MLflow server."""
        return f"http://{HOST}:{self.ports['mlflow']}"

    def database_url(self, name: str) -> str:
        """SQLAlchemy's URL of a database."""
        return f"postgresql+psycopg://{USER}:{self.password}@{HOST}:{self.ports['postgres']}/{name}"


def lock_folder(folder: Path) -> FileLock:
    """Makes the folder when it is not there, and takes its lock.

    Raises:
        ConfigError: It cannot be made or written, or another stack runs in it.
    """
    lock = FileLock(folder / _LOCK, timeout=0)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise ConfigError(f"another stack runs in {folder}", hint="end it, or choose another folder") from None
    except OSError as error:
        raise ConfigError(f"the folder {folder} cannot be used: {error.strerror}") from error
    return lock


def read_or_make_identity(folder: Path) -> Identity:
    """What an earlier stack wrote into the folder; otherwise a new one, written.

    Raises:
        ConfigError: What is there cannot be read.
    """
    path = folder / _FILE
    if path.exists():
        try:
            return Identity(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"{path} cannot be read: {error}", hint="remove the folder to begin anew") from error
    ports = dict(zip(_LISTENERS, _free_ports(len(_LISTENERS)), strict=True))
    identity = Identity(ports, secrets.token_hex(16), secrets.token_hex(10).upper(), secrets.token_hex(20))
    new = path.with_suffix(".new")
    write_secret(new, json.dumps(asdict(identity)))
    new.replace(path)
    return identity


def write_secret(path: Path, text: str) -> None:
    """Writes a file that only this user reads, from its first byte on."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)


def _free_ports(count: int) -> list[int]:
    """Below those that the kernel gives to clients, which could take the port of a server that is down for a moment."""
    ports: list[int] = []
    while len(ports) < count:
        port = random.randrange(_LOWEST_PORT, min(_first_client_port() - GRPC_OFFSET, _LOWEST_PORT + GRPC_OFFSET))
        if port not in ports and is_free(port) and is_free(port + GRPC_OFFSET):
            ports.append(port)
    return ports


def _first_client_port() -> int:
    with contextlib.suppress(OSError, ValueError):
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
        if first > _LOWEST_PORT + GRPC_OFFSET + 1_000:
            return first
    return _FIRST_CLIENT_PORT
