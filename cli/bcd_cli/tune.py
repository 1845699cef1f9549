"""`bcd-registry tune`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from bcd_cli import options, release
from bcd_cli.command import FAILED, example
from bcd_cli.interrupts import INTERRUPTED
from bcd_cli.state import State, state_of
from bcd_cli.streams import print_json, stdout_to_stderr
from bcd_registry.errors import ConfigError
from bcd_tuner.clustering import Clustering

if TYPE_CHECKING:
    from bcd_tuner.report import TuneReport


EPILOG = example(
    "bcd-registry tune --model v2 --time-budget 5m",
    "bcd-registry tune --model v2 --canary 8",
    "bcd-registry tune --model net.onnx --shape x=1,3,48,192 --json > report.json",
)


def tune(
    ctx: typer.Context,
    model: options.Model,
    shape: options.Shape = None,
    target: options.Target = None,
    trials: options.Trials = None,
    time_budget: options.TimeBudget = None,
    seed: options.Seed = 0,
    fresh: options.Fresh = False,
    canary: options.Canary = 0,
    frozen: release.Frozen = None,
    clustering: options.Siblings = Clustering.SIGNATURE,
    as_json: options.AsJson = False,
) -> None:
    """Tune a network from what the registry knows.

    What is known is reused, what is near is diffused, the rest is searched; what is checked is published.
    """
    state = state_of(ctx)
    spec = options.resolve(state, model, shape=shape, target=target, trials=trials, time_budget=time_budget)
    if frozen is not None and (fresh or trials is not None or time_budget is not None):
        raise ConfigError("--frozen does no trial", hint="leave out --fresh, --trials and --time-budget")
    lock = release.read_frozen(frozen)
    with stdout_to_stderr(), release.listed(state):
        from bcd_cli.progress import open_progress
        from bcd_cli.stores import open_stores
        from bcd_tuner.mlflow_spool import SPOOL_FOLDER
        from bcd_tuner.session import TuneRequest
        from bcd_tuner.session import tune as run
        from bcd_tuner.tracking import Tracker

        settings = state.settings
        registry = f"{settings.catalog_name}, blobs in {settings.blobs_name}" if settings.registry_enabled else "off"
        tracker = Tracker(settings.mlflow_tracking_uri, spool=settings.home / SPOOL_FOLDER, params={"registry": registry})
        with (
            open_stores(settings, required=lock is not None) as stores,
            tracker,
            open_progress(state.err) as shown,
            state.interrupts.deferred(shown) as progress,
        ):
            for line in stores.notes:
                state.err.print(line, highlight=False)
            report = run(
                TuneRequest(spec, seed=seed, fresh=fresh, clustering=clustering, canary=canary, lock=lock),
                stores.registry,
                progress=progress,
                tracker=tracker,
                output_dir=settings.home / "runs",
                open_outbox=stores.open_outbox,
            )
    if as_json:
        print_json(report.as_json())
    else:
        _print_report(state, report, tracker.ui_command)
    if report.interrupted and state.interrupts.arrived:
        raise typer.Exit(INTERRUPTED)
    if not (report.checked or report.interrupted):
        raise typer.Exit(FAILED)


def _print_report(state: State, report: TuneReport, ui_command: str) -> None:
    from bcd_cli.rendering.report import render_report

    state.out.print(render_report(report, _runnable(ui_command)), crop=False)


def _runnable(command: str) -> str:
    """The command as it can be typed: a virtual environment that is not active has its programs beside its interpreter."""
    program, _, arguments = command.partition(" ")
    if not arguments or shutil.which(program) is not None:  # a server's address, or a command that is found
        return command
    beside = Path(sys.executable).with_name(program)
    return f"{beside} {arguments}" if beside.exists() else command
