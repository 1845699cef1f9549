"""`bcd-registry gc`."""

from __future__ import annotations

from typing import Annotated

import typer

from bcd_cli import options
from bcd_cli.command import example
from bcd_cli.state import state_of
from bcd_cli.streams import print_json

EPILOG = example("bcd-registry gc", "bcd-registry gc --keep 4 --grace 48h --yes")


def gc(
    ctx: typer.Context,
    yes: Annotated[bool, typer.Option("--yes", help="Remove it; without this nothing is removed.")] = False,
    keep: Annotated[int, typer.Option(min=1, help="Records that stay of each workload and environment.")] = 8,
    grace: Annotated[str, typer.Option(help="How long a blob that nothing names stays.", metavar="TIME")] = "24h",
    as_json: options.AsJson = False,
) -> None:
    """Say what can go, and with --yes remove it.

    That is records beaten by better ones, cost models but for the newest, and blobs that nothing names any more. What a
    pinned network uses stays.
    """
    from bcd_cli.rendering.housekeeping import render_garbage
    from bcd_registry.housekeeping import collect_garbage, find_garbage

    state = state_of(ctx)
    grace_s = options.parse_time(grace, "--grace")
    with state.open_registry() as registry:
        garbage = (collect_garbage if yes else find_garbage)(registry, keep=keep, grace_s=grace_s)
    if as_json:
        print_json({"schema": 1, "removed": yes, "keep": keep, "grace_s": grace_s, **garbage.as_json()})
        return
    command = None if yes else f"bcd-registry gc --keep {keep} --grace {grace} --yes"
    state.out.print(render_garbage(garbage, keep=keep, grace_s=grace_s, command=command), crop=False)
