"""`bcd-registry stats`."""

from __future__ import annotations

from typing import Annotated

import typer

from bcd_cli import options
from bcd_cli.command import example
from bcd_cli.state import state_of
from bcd_cli.streams import print_json

EPILOG = example("bcd-registry stats", "bcd-registry stats --json")


def stats(
    ctx: typer.Context,
    runs: Annotated[int, typer.Option(min=1, help="Add up the reports of so many runs, the newest ones.")] = 1000,
    as_json: options.AsJson = False,
) -> None:
    """Say what the registry holds, and what it was good for.

    Rows, blobs, how many tasks it knew and why not more, and what it saved (estimated).
    """
    from bcd_cli.rendering.housekeeping import render_statistics
    from bcd_registry.housekeeping import read_statistics

    state = state_of(ctx)
    with state.open_registry() as registry:
        found = read_statistics(registry, n_runs=runs)
    if as_json:
        print_json({"schema": 1, **found.as_json()})
        return
    state.out.print(render_statistics(found), crop=False)
