"""`bcd-registry check`."""

from __future__ import annotations

from typing import Annotated

import typer

from bcd_cli import options
from bcd_cli.command import example
from bcd_cli.state import state_of
from bcd_cli.streams import print_json, stdout_to_stderr
from bcd_registry.errors import ConfigError

NO_LONGER_HOLDS = 8
DEFAULT_SAMPLE = 8

EPILOG = example("bcd-registry check --model v1", "bcd-registry check --model v1 --all --json")


def check(
    ctx: typer.Context,
    model: options.Model,
    shape: options.Shape = None,
    target: options.Target = None,
    sample: Annotated[
        int | None,
        typer.Option(
            "--sample",
            min=1,
            help=f"Measure so many records, drawn by their share of the latency [default: {DEFAULT_SAMPLE}].",
            show_default=False,
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Measure every record of the network.")] = False,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Draws the records and the inputs.")] = 0,
    as_json: options.AsJson = False,
) -> None:
    """Measure what the registry knows of a network again.

    Each stored winner is compared and timed with its untuned program. One that got slower beside it, twice, is only a prior
    until it holds again; one that computes something else is quarantined. With --read-only nothing is marked.
    """
    if every and sample is not None:
        raise ConfigError("--sample and --all contradict each other", hint="give one of them")
    state = state_of(ctx)
    if not state.settings.registry_enabled:
        raise ConfigError("the registry is switched off: there is nothing to check", hint="unset BCD_REGISTRY")
    spec = options.resolve(state, model, shape=shape, target=target, trials=None, time_budget=None)
    with stdout_to_stderr():
        from bcd_cli.progress import open_progress
        from bcd_tuner.canary import CanaryRequest, check_network_records

        request = CanaryRequest(spec, None if every else sample or DEFAULT_SAMPLE, seed, mark=not state.settings.read_only)
        with (
            state.open_registry() as registry,
            open_progress(state.err) as shown,
            state.interrupts.deferred(shown) as progress,
        ):
            report = check_network_records(request, registry, progress=progress)
    if as_json:
        print_json(report.as_json())
    else:
        from bcd_cli.rendering.check import render_check

        state.out.print(render_check(report), crop=False)
    if not report.holds:
        raise typer.Exit(NO_LONGER_HOLDS)
