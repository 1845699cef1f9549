"""What `compile`, `bench`, `lock`, `gate` and `tune --frozen` share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bcd_cli.streams import stdout_to_stderr
from bcd_registry.errors import FrozenMismatch

if TYPE_CHECKING:
    from bcd_cli.state import State
    from bcd_registry.lock import Lock
    from bcd_registry.registry import Registry
    from bcd_tuner.published import Say

Frozen = Annotated[
    Path | None,
    typer.Option("--frozen", help="Use exactly the records that this lock names, or fail.", metavar="LOCK", show_default=False),
]
Depth = Annotated[
    int,
    typer.Option(
        "--trials", min=0, help="Count a schedule only when a search with so many came to its end; 0 takes any published one."
    ),
]
Repeats = Annotated[
    int | None,
    typer.Option("--repeats", min=3, help="Runs of each; by default as many as the time allows.", show_default=False),
]


@contextlib.contextmanager
def working(state: State) -> Iterator[tuple[Registry, Say]]:
    """The registry, and what takes each step; standard output is kept for results until the block ends."""
    with stdout_to_stderr(), listed(state):
        from bcd_cli.progress import open_progress
        from bcd_tuner.published import sayer

        with state.open_registry() as registry, open_progress(state.err) as shown, state.interrupts.deferred(shown) as progress:
            yield registry, sayer(progress)


@contextlib.contextmanager
def listed(state: State) -> Iterator[None]:
    """Show everything that a lock names and that cannot be used, before the error says so."""
    try:
        yield
    except FrozenMismatch as error:
        for problem in error.problems:
            state.err.print(f"  {problem}", markup=False, soft_wrap=True)
        raise


def read_frozen(path: Path | None) -> Lock | None:
    """The lock that `--frozen` names.

    Raises:
        ConfigError: It cannot be read, or is no lock.
        FrozenMismatch: It was edited or damaged.
    """
    if path is None:
        return None
    from bcd_registry.frozen import load_lock

    return load_lock(path)
