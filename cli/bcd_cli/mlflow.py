"""`bcd-registry mlflow`: what MLflow has missed."""

from __future__ import annotations

import typer

from bcd_cli import options
from bcd_cli.command import Command, example
from bcd_cli.state import state_of
from bcd_cli.streams import print_json, stdout_to_stderr

app = typer.Typer(help="Runs on their way to MLflow.", no_args_is_help=True, rich_markup_mode=None)


@app.command(cls=Command, epilog=example("bcd-registry mlflow sync", "bcd-registry mlflow sync --json"))
def sync(ctx: typer.Context, as_json: options.AsJson = False) -> None:
    """Log the runs that MLflow did not take when they ended.

    They wait in the home, in mlflow-spool. A run that MLflow has already is not logged twice.
    """
    from bcd_cli.rendering.mlflow import render_synced
    from bcd_tuner.mlflow_spool import SPOOL_FOLDER
    from bcd_tuner.tracking import Tracker
    from bcd_tuner.tracking import sync as log_spooled

    state = state_of(ctx)
    settings = state.settings
    with stdout_to_stderr():
        synced = log_spooled(settings.mlflow_tracking_uri, settings.home / SPOOL_FOLDER)
    if as_json:
        print_json({"schema": 1, **synced.as_json()})
        return
    state.out.print(render_synced(synced, Tracker(settings.mlflow_tracking_uri).ui_command), crop=False)
