"""`bcd-registry doctor`."""

from __future__ import annotations

import dataclasses

import typer

from bcd_cli import options
from bcd_cli.command import example
from bcd_cli.state import state_of
from bcd_cli.streams import print_json

EPILOG = example("bcd-registry doctor")


def doctor(ctx: typer.Context, as_json: options.AsJson = False) -> None:
    """Check versions, compiler, home, database and blobs.

    A kernel is really built and run, a blob stored and deleted, a row written and
    taken back. Exit status 4 or 5 when something fails.
    """
    from bcd_cli.checks import run_checks
    from bcd_cli.rendering.checks import render_checks

    state = state_of(ctx)
    checks = run_checks(state)
    failed = next((check for check in checks if check.status == "fail"), None)
    if as_json:
        print_json({"schema": 1, "ok": failed is None, "checks": [dataclasses.asdict(check) for check in checks]})
    else:
        state.out.print(render_checks(checks))
    if failed is not None:
        raise typer.Exit(failed.exit_code)
