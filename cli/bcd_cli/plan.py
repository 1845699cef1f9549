"""`bcd-registry plan`."""

from __future__ import annotations

import typer

from bcd_cli import options
from bcd_cli.command import example
from bcd_cli.state import state_of
from bcd_cli.streams import print_json, stdout_to_stderr
from bcd_tuner.clustering import Clustering

EPILOG = example("bcd-registry plan --model v2", "bcd-registry plan --model v2 --trials 64 --json")


def plan(
    ctx: typer.Context,
    model: options.Model,
    shape: options.Shape = None,
    target: options.Target = None,
    trials: options.Trials = None,
    fresh: options.Fresh = False,
    clustering: options.Siblings = Clustering.SIGNATURE,
    as_json: options.AsJson = False,
) -> None:
    """Say what tune would do and what it would cost; run nothing."""
    state = state_of(ctx)
    spec = options.resolve(state, model, shape=shape, target=target, trials=trials, time_budget=None)
    with stdout_to_stderr():
        from bcd_cli.progress import open_progress
        from bcd_cli.stores import open_stores
        from bcd_tuner.session import TuneRequest
        from bcd_tuner.session import plan as make_plan

        with (
            open_stores(state.settings) as stores,
            open_progress(state.err) as shown,
            state.interrupts.deferred(shown) as progress,
        ):
            for line in stores.notes:
                state.err.print(line, highlight=False)
            found = make_plan(TuneRequest(spec, fresh=fresh, clustering=clustering), stores.registry, progress=progress)
    if as_json:
        print_json(found.as_json())
        return
    from bcd_cli.rendering.plan import render_plan

    state.out.print(render_plan(found), crop=False)
