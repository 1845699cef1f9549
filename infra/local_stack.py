"""PostgreSQL, an S3 server and MLflow on free loopback ports, without containers: to try a team's registry, and for tests.

    python infra/local_stack.py

prints the variables that a team sets and runs until Ctrl-C. Every server ends with the process that started it.
"""

from __future__ import annotations

import argparse
import contextlib
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn, Self

if not __package__:  # called as a script, which has its own folder on the path and not the project's
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bcd_registry.errors import BcdError, StoreUnavailable
from bcd_tuner.scratch import Scratch
from infra import programs
from infra.identity import BUCKET, lock_folder, read_or_make_identity
from infra.servers import Server


class LocalStack:
    """PostgreSQL and an S3 server, and MLflow on both; use it in a `with` block. Not to be started again once stopped.

    Args:
        folder: Where data, logs, ports and secrets are kept for the next stack; by default a temporary one, which is not kept.
        mlflow: Whether there is an MLflow server too.
        fsync: False lets PostgreSQL lose its last writes when the machine (not the server) crashes, and be faster.

    Attributes:
        folder: Absolute.
        temporary: Whether the folder goes with the stack.
        identity: Ports and secrets.
        postgres: The servers, each to be stopped, killed and started anew by itself.
        s3: See above.
        mlflow: None where there is none.

    Raises:
        ConfigError: A server is not installed, or the folder cannot be used.
    """

    def __init__(self, folder: Path | None = None, *, mlflow: bool = False, fsync: bool = True) -> None:
        self.temporary = folder is None
        with contextlib.ExitStack() as opened:
            if folder is None:
                scratch = Scratch()
                opened.callback(scratch.close)
                folder = scratch.path
            self.folder = folder.absolute()
            opened.callback(lock_folder(self.folder).release)
            self.identity = read_or_make_identity(self.folder)
            starter = ThreadPoolExecutor(1, thread_name_prefix="local-stack")
            self.postgres = Server(programs.postgres(self.folder, self.identity, fsync=fsync), self.folder, starter)
            self.s3 = Server(programs.s3(self.folder, self.identity), self.folder, starter)
            self.mlflow = Server(programs.mlflow(self.identity), self.folder, starter) if mlflow else None
            self._opened = opened.pop_all()

    @property
    def servers(self) -> list[Server]:
        """All of them, in the order of their start."""
        return [server for server in (self.s3, self.postgres, self.mlflow) if server is not None]

    @property
    def environment(self) -> dict[str, str]:
        """The variables that a team sets, secrets included."""
        exports = {
            "BCD_DATABASE_URL": self.identity.database_url(programs.DATABASE),
            "BCD_BLOBS_URL": f"s3://{BUCKET}/team",
            "BCD_S3_ENDPOINT_URL": self.identity.s3_endpoint,
            **self.identity.s3_credentials,
        }
        return exports if self.mlflow is None else {**exports, "BCD_MLFLOW_TRACKING_URI": self.identity.mlflow_url}

    def start(self) -> None:
        """Starts every server and waits until all answer; when one does not, none is left.

        Raises:
            ConfigError: A port is taken.
            StoreUnavailable: A server does not come up; the message ends with what its log says.
        """
        try:
            self.s3.launch()  # PostgreSQL's data is made while it starts
            self.postgres.start()
            programs.create_databases(self.identity)
            self.s3.wait()
            if self.mlflow is not None:
                self.mlflow.start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends every server and removes a temporary folder; calling it again is free."""
        for server in reversed(self.servers):
            if self.temporary and server is self.s3:
                server.kill()  # nobody reads its data again, and an orderly end takes seconds
            else:
                server.stop()
        self._opened.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def main(argv: Sequence[str] | None = None) -> int:
    """Starts the stack, prints the exports and waits for Ctrl-C."""
    parser = argparse.ArgumentParser(description="Starts PostgreSQL, an S3 server and MLflow on free loopback ports.")
    parser.add_argument("--folder", type=Path, help="keeps data, ports and secrets there for the next start")
    parser.add_argument("--no-mlflow", dest="mlflow", action="store_false", help="only the two servers that a registry needs")
    options = parser.parse_args(argv)
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background job starts with SIGINT ignored
        signal.signal(number, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        try:
            with LocalStack(options.folder, mlflow=options.mlflow) as stack:
                _announce(stack)
                _watch(stack)
        except BcdError as error:
            print(f"error: {error.message}", *([f"hint: {error.hint}"] if error.hint else []), sep="\n", file=sys.stderr)
            return error.exit_code
    return 0


def _announce(stack: LocalStack) -> None:
    for name, value in stack.environment.items():
        print(f"export {name}={shlex.quote(value)}")
    data = "their data goes with them, or stays with --folder DIR" if stack.temporary else f"their data is in {stack.folder}"
    print(f"# {len(stack.servers)} servers run until Ctrl-C; {data}", file=sys.stderr)
    sys.stdout.flush()


def _watch(stack: LocalStack) -> NoReturn:
    """Waits for the first server that ends by itself."""
    while True:
        for server in stack.servers:
            if not server.alive:
                raise StoreUnavailable(f"{server.program.name} has ended: {server.last_line()}")
        time.sleep(0.5)


if __name__ == "__main__":
    sys.exit(main())
