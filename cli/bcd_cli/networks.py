"""`bcd-registry networks`: what can be tuned, and what was."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from bcd_cli import options
from bcd_cli.command import Command, example
from bcd_cli.state import State, state_of
from bcd_cli.streams import print_json
from bcd_registry.errors import ConfigError

if TYPE_CHECKING:
    from bcd_registry.model import NetworkVersion, Task
    from bcd_registry.registry import Registry

Network = Annotated[
    str, typer.Argument(help="A name from the configuration file, or NAME or NAME:VERSION of a tuned one.", show_default=False)
]
Version = Annotated[
    str | None, typer.Argument(help="The version, where NAME has several and it is not given above.", show_default=False)
]

app = typer.Typer(help="Networks of the configuration file and of the registry.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list", cls=Command, epilog=example("bcd-registry networks list"))
def list_networks(ctx: typer.Context, as_json: options.AsJson = False) -> None:
    """List the networks that --model knows, and those that were tuned."""
    from bcd_cli.rendering.listings import render_networks

    state = state_of(ctx)
    with state.open_registry() as registry:
        tuned, pins = registry.list_networks(), registry.list_pins()
    configured = state.settings.networks
    if as_json:
        print_json(
            {
                "schema": 1,
                "configured": [dataclasses.asdict(spec) for spec in configured.values()],
                "tuned": [{**_summary(n), "pinned": (n.name, n.version) in pins} for n in tuned],
            }
        )
        return
    state.out.print(render_networks(configured, tuned, pins), crop=False)


@app.command(cls=Command, epilog=example("bcd-registry networks show v1", "bcd-registry networks show ppocr-det:v4"))
def show(
    ctx: typer.Context,
    network: Network,
    as_json: options.AsJson = False,
) -> None:
    """Show one tuned version: its tasks, and the runs that tuned it."""
    from bcd_cli.rendering.listings import render_network

    state = state_of(ctx)
    with state.open_registry() as registry:
        name, version = name_and_version(network, state, registry)
        found = registry.get_network(name, version)
        runs = registry.list_runs(network=name, version=version)
    if as_json:
        print_json(
            {"schema": 1, **_summary(found), "tasks": [_task(task) for task in found.tasks], "runs": [r.id for r in runs]}
        )
        return
    state.out.print(render_network(found, runs), crop=False)


@app.command(cls=Command, epilog=example("bcd-registry networks delete ppocr-det v4"))
def delete(ctx: typer.Context, network: Network, version: Version = None) -> None:
    """Forget one tuned version.

    Its records stay until gc finds better ones. A pinned one is refused: unpin it first.
    """
    state = state_of(ctx)
    with state.open_registry() as registry:
        chosen = name_and_version(network, state, registry, version)
        registry.delete_network(*chosen)
    typer.echo(f"{title(*chosen)} is forgotten; its records are still served")


def title(name: str, version: str) -> str:
    """`NAME:VERSION`, or the name alone."""
    return f"{name}:{version}" if version else name


def name_and_version(text: str, state: State, registry: Registry, version: str | None = None) -> tuple[str, str]:
    """What NAME, NAME:VERSION or a name of the configuration file means; the version may be left out where there is only one.

    Args:
        version: Given by itself: then the text is the network's own name.

    Raises:
        ConfigError: There is no network of the name, or several of its versions.
    """
    if version is not None:
        return text, version
    spec = state.settings.networks.get(text)
    if spec is not None:
        return spec.name, spec.version
    from bcd_registry.config_file import nearest

    name, colon, after = text.partition(":")
    if colon:
        return name, after
    known = registry.list_networks()
    versions = [network.version for network in known if network.name == name]
    if len(versions) > 1:
        raise ConfigError(f"{name!r} has {len(versions)} versions", hint=f"one of {', '.join(f'{name}:{v}' for v in versions)}")
    if not versions:
        names = [*state.settings.networks, *(network.name for network in known)]
        raise ConfigError(f"no network is called {name!r}", hint=nearest(name, names) or "`bcd-registry tune` makes one")
    return name, versions[0]


def _summary(network: NetworkVersion) -> dict[str, object]:
    fields = {field.name: getattr(network, field.name) for field in dataclasses.fields(network) if field.name != "tasks"}
    return {**fields, "n_tasks": len(network.tasks)}


def _task(task: Task) -> dict[str, object]:
    workload = task.workload
    return {
        "name": task.name,
        "op": workload.op,
        "weight": task.weight,
        "workload_key": workload.key,
        "cluster": workload.cluster,
        "anchor": workload.anchor,
        "extents": workload.extents,
        "flops": workload.flops,
    }
