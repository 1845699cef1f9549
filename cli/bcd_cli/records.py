"""`bcd-registry records`: schedules that the registry keeps."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from bcd_cli import options
from bcd_cli.command import Command, example
from bcd_cli.networks import name_and_version
from bcd_cli.state import state_of
from bcd_cli.streams import print_json

if TYPE_CHECKING:
    from bcd_registry.model import Event, TuningRecord

app = typer.Typer(help="Tuning records of the registry.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list", cls=Command, epilog=example("bcd-registry records list --network v1 --limit 10"))
def list_records(
    ctx: typer.Context,
    network: Annotated[
        str | None, typer.Option(help="Only those of a network's tasks: NAME, NAME:VERSION.", show_default=False)
    ] = None,
    workload: Annotated[
        str | None, typer.Option(help="Only those of a workload: how its key begins.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, newest first.")] = 50,
    as_json: options.AsJson = False,
) -> None:
    """List tuning records, newest first."""
    from bcd_cli.rendering.listings import render_records

    state = state_of(ctx)
    with state.open_registry() as registry:
        of_network = None if network is None else name_and_version(network, state, registry)
        records = registry.list_records(workload=workload, network=of_network, limit=limit)
        workloads = registry.get_workloads([record.workload_key for record in records])
    if as_json:
        print_json({"schema": 1, "records": [_as_json(record) for record in records]})
        return
    state.out.print(render_records(records, workloads), crop=False)


@app.command(cls=Command, epilog=example("bcd-registry records show 3f9a"))
def show(
    ctx: typer.Context,
    record: Annotated[str, typer.Argument(help="How the record's id begins.")],
    as_json: options.AsJson = False,
) -> None:
    """Show one record and what was said of it later.

    With --json its trace as well.
    """
    from bcd_cli.rendering.listings import render_record

    state = state_of(ctx)
    with state.open_registry() as registry:
        found = registry.get_record(record)
        workload = registry.get_workloads([found.workload_key]).get(found.workload_key)
        environment = registry.get_environment(found.environment_key)
        events = registry.list_events(record=found.id)
    if as_json:
        details = {"trace": found.trace, "environment": environment.as_json(), "events": [_event(event) for event in events]}
        print_json({"schema": 1, **_as_json(found), **details})
        return
    state.out.print(render_record(found, workload, environment, events), crop=False)


def _as_json(record: TuningRecord) -> dict[str, object]:
    fields = {field.name: getattr(record, field.name) for field in dataclasses.fields(record) if field.name != "trace"}
    return {"id": record.id, "median_ms": record.median_s * 1e3, "spread_ms": record.spread_s * 1e3, **fields}


def _event(event: Event) -> dict[str, object]:
    """An event without the ids of its records, which may be many."""
    fields = {field.name: getattr(event, field.name) for field in dataclasses.fields(event) if field.name != "records"}
    return {**fields, "selection": dict(event.selection), "n_records": len(event.records)}
