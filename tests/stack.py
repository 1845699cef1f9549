"""Real servers for the tests that need them: one of each kind a session, an own database or prefix a test."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from infra import programs
from infra.identity import BUCKET
from infra.local_stack import LocalStack
from infra.servers import Server


@pytest.fixture(scope="session")
def stack() -> Iterator[LocalStack]:
    """Both servers, without MLflow. A test that ends one starts it again; the fixtures below do so for those after it."""
    with LocalStack(fsync=False) as started:
        yield started


@pytest.fixture
def postgres_url(stack: LocalStack) -> Iterator[str]:
    """SQLAlchemy's URL of a new, empty database, removed after the test whoever is still connected."""
    if not stack.postgres.alive:
        stack.postgres.start()
    name = f"test_{secrets.token_hex(6)}"
    with programs.connect(stack.identity) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE template0")
    yield stack.identity.database_url(name)
    if not stack.postgres.alive:
        stack.postgres.start()
    with programs.connect(stack.identity) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def s3_prefix(stack: LocalStack) -> str:
    """`s3://bucket/prefix` with nothing below it; what a test leaves there goes with the session."""
    if not stack.s3.alive:
        stack.s3.start()
    return f"s3://{BUCKET}/test-{secrets.token_hex(6)}"


@pytest.fixture(scope="session")
def mlflow_url(stack: LocalStack) -> Iterator[str]:
    """A real MLflow server, its runs in the stack's PostgreSQL and its files in the stack's bucket."""
    with ThreadPoolExecutor(1) as starter:
        server = Server(programs.mlflow(stack.identity), stack.folder, starter)
        server.start()
        try:
            yield stack.identity.mlflow_url
        finally:
            server.stop()
