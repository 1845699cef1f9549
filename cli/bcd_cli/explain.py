"""`bcd-registry explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bcd_cli import options
from bcd_cli.command import example
from bcd_cli.state import State, state_of
from bcd_cli.streams import print_json, stdout_to_stderr
from bcd_registry.errors import ConfigError

if TYPE_CHECKING:
    from bcd_registry.naming import Comparison
    from bcd_tuner.explaining import ExplainedPlan

EPILOG = example(
    "bcd-registry explain --model v2", "bcd-registry explain --model v2 --task 3f9a", "bcd-registry explain 3f9a 77bc"
)

_HINT = "`bcd-registry explain --model v2`, or `bcd-registry explain A B` with how two ids begin"
_N_COMPARED = 2


def explain(
    ctx: typer.Context,
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="A B", help="How the ids of two workloads, records or environments begin.", show_default=False),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="The network whose tasks are explained.", show_default=False)
    ] = None,
    task: Annotated[
        str | None, typer.Option("--task", help="Only this one: its name, or how its workload key begins.", show_default=False)
    ] = None,
    shape: options.Shape = None,
    target: options.Target = None,
    trials: options.Trials = None,
    as_json: options.AsJson = False,
) -> None:
    """Say why each task of a network is graded as it is.

    Nothing is run. For a task that is not exact: the closest entry, what differs, what was left out and why, and what
    tuning it would cost. With --task every field that differs is listed. With A and B: what differs between two workloads,
    records or environments.
    """
    state = state_of(ctx)
    if (model is None) == (not ids):
        raise ConfigError("it is not said what to explain" if model is None else "a network or A and B, not both", hint=_HINT)
    if model is None:
        if task is not None or shape or target is not None or trials is not None:
            raise ConfigError("--task, --shape, --target and --trials need a --model", hint=_HINT)
        _compare(state, ids or [], as_json=as_json)
        return
    found = _explain(state, model, shape, target, trials)
    shown = found if task is None else found.only(task)
    if as_json:
        print_json(shown.as_json())
        return
    from bcd_cli.rendering.explain import render_explained

    state.out.print(render_explained(shown, every_field=task is not None), crop=False)


def _explain(state: State, model: str, shape: list[str] | None, target: str | None, trials: int | None) -> ExplainedPlan:
    spec = options.resolve(state, model, shape=shape, target=target, trials=trials, time_budget=None)
    with stdout_to_stderr():
        from bcd_cli.progress import open_progress
        from bcd_tuner.explaining import explain_network
        from bcd_tuner.session import TuneRequest

        with (
            state.open_registry() as registry,
            open_progress(state.err) as shown,
            state.interrupts.deferred(shown) as progress,
        ):
            return explain_network(TuneRequest(spec), registry, progress=progress)


def _compare(state: State, ids: list[str], *, as_json: bool) -> None:
    if len(ids) != _N_COMPARED:
        raise ConfigError(f"{len(ids)} given, and two are compared", hint=_HINT)
    from bcd_registry.naming import compare_named

    with state.open_registry() as registry:
        found: Comparison = compare_named(registry, *ids)
    if as_json:
        print_json({"schema": 1, **found.as_json()})
        return
    from bcd_cli.rendering.explain import render_comparison

    state.out.print(render_comparison(found), crop=False)
