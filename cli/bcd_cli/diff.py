"""`bcd-registry diff`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bcd_cli import options
from bcd_cli.command import example
from bcd_cli.state import state_of
from bcd_cli.streams import print_json

EPILOG = example("bcd-registry diff old.lock bcd.lock")


def diff(
    ctx: typer.Context,
    old: Annotated[Path, typer.Argument(help="A lock.", show_default=False)],
    new: Annotated[Path, typer.Argument(help="The lock that came after it.", show_default=False)],
    as_json: options.AsJson = False,
) -> None:
    """Say what changed between two locks.

    Tasks, records, latencies, environment.
    """
    from bcd_registry.frozen import load_lock
    from bcd_registry.lock import compare_locks

    before, after = load_lock(old), load_lock(new)
    found = compare_locks(before, after)
    if as_json:
        print_json({"schema": 1, **found.as_json()})
        return
    from bcd_cli.rendering.locks import render_difference

    state_of(ctx).out.print(render_difference(before, after, found), crop=False)
