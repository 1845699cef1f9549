"""`bcd-registry invalidate` and `restore`: records taken back, and served again."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from bcd_cli import options
from bcd_cli.command import example
from bcd_cli.state import State, state_of
from bcd_cli.streams import print_json
from bcd_registry.errors import ConfigError

if TYPE_CHECKING:
    from bcd_registry.model import Selection
    from bcd_registry.registry import Registry

INVALIDATE_EPILOG = example(
    "bcd-registry invalidate --network ppocr-det:v4 --older-than 90d",
    "bcd-registry invalidate --record 3f9a --with-descendants \\",
    "    --reason 'measured on a throttled machine' --yes",
)
RESTORE_EPILOG = example("bcd-registry restore 5c1e", "bcd-registry restore --record 3f9a --reason 'measured again'")

_NO_REASON = "restored by hand"


def invalidate(
    ctx: typer.Context,
    record: Annotated[str | None, typer.Option(help="How the record's id begins.", show_default=False)] = None,
    workload: Annotated[str | None, typer.Option(help="How the workload's key begins.", show_default=False)] = None,
    cluster: Annotated[str | None, typer.Option(help="How the cluster's signature begins.", show_default=False)] = None,
    environment: Annotated[str | None, typer.Option(help="How the environment's key begins.", show_default=False)] = None,
    network: Annotated[
        str | None,
        typer.Option(help="Records of a network's tasks.", metavar="NAME[:VERSION]", show_default=False),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", help="Records kept longer ago: 90d, 12h.", metavar="TIME", show_default=False),
    ] = None,
    with_descendants: Annotated[
        bool, typer.Option("--with-descendants", help="And all that was diffused from them, over all generations.")
    ] = False,
    reason: Annotated[
        str | None, typer.Option(help="Why, in a few words: it is kept, and shown to others.", show_default=False)
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without this nothing is changed.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Say what would be taken back, and with --yes take it back.

    Records that meet all of the options are no longer served, neither as results nor as priors, until `restore` says so.
    Nothing is removed.
    """
    from bcd_cli.rendering.invalidation import render_recalled
    from bcd_registry.invalidation import find_recalled, recall
    from bcd_registry.model import Selection

    if yes and not (reason or "").strip():
        raise ConfigError("--yes needs a --reason: it is kept, and shown to others", hint="--reason 'in a few words'")
    state = state_of(ctx)
    older_than_s = None if older_than is None else options.parse_time(older_than, "--older-than")
    with state.open_registry() as registry:
        of_network = None if network is None else _network_of(network, state, registry)
        selection = Selection(record, workload, cluster, environment, of_network, older_than_s)
        found = find_recalled(registry, selection, with_descendants=with_descendants)
        event = recall(registry, found, reason or "") if yes and found.records else None
    if as_json:
        done = {"event": None if event is None else event.id, "reason": reason}
        print_json({"schema": 1, "invalidated": event is not None, **done, **found.as_json()})
        return
    command = _command(selection, network, older_than, with_descendants=with_descendants, reason=reason)
    state.out.print(render_recalled(found, event, command), crop=False)


def restore(
    ctx: typer.Context,
    event: Annotated[str | None, typer.Argument(help="How the id of the invalidation begins.", show_default=False)] = None,
    record: Annotated[
        list[str] | None, typer.Option("--record", help="How a record's id begins. Repeatable.", show_default=False)
    ] = None,
    reason: Annotated[str, typer.Option(help="Why, in a few words.")] = _NO_REASON,
    as_json: options.AsJson = False,
) -> None:
    """Serve records again that were taken back.

    They are what they were before. An EVENT is undone alone: what was taken back by others as well stays so. A --record is
    restored whatever took it back.
    """
    if (event is None) == (not record):
        what = "it is not said what to restore" if event is None else "an event or records, not both"
        raise ConfigError(what, hint="`bcd-registry restore EVENT`, as `invalidate` and `records show` name it, or --record ID")
    from bcd_cli.rendering.invalidation import render_restored
    from bcd_registry.naming import find_record

    state = state_of(ctx)
    with state.open_registry() as registry:
        chosen = event or [find_record(registry, prefix).id for prefix in record or []]
        done = registry.restore(chosen, reason)
    if as_json:
        print_json({"schema": 1, "event": done.id, "reason": done.reason, "records": list(done.records)})
        return
    state.out.print(render_restored(done), crop=False)


def _network_of(text: str, state: State, registry: Registry) -> tuple[str, str | None]:
    """What NAME, NAME:VERSION or a name of the configuration file means; a name alone means all its versions.

    Raises:
        ConfigError: There is no such network in the registry.
    """
    from bcd_cli.networks import title
    from bcd_registry.config_file import nearest

    known = [(network.name, network.version) for network in registry.list_networks()]
    spec = state.settings.networks.get(text)
    if spec is not None and (spec.name, spec.version) in known:
        return spec.name, spec.version
    name, colon, version = text.partition(":")
    chosen = (name, version if colon else None)
    if not any(chosen in ((n, v), (n, None)) for n, v in known):
        names = [title(*pair) for pair in known]
        raise ConfigError(f"no tuned network is called {text!r}", hint=nearest(text, names) or "`bcd-registry networks list`")
    return chosen


def _command(
    selection: Selection, network: str | None, older_than: str | None, *, with_descendants: bool, reason: str | None
) -> str:
    """What does it, to be copied into a shell."""
    import shlex

    given = {**dataclasses.asdict(selection), "network": network, "older-than": older_than}
    given.pop("older_than_s")
    options_ = [f"--{name} {shlex.quote(str(value))}" for name, value in given.items() if value is not None]
    options_ += ["--with-descendants"] * with_descendants
    return " ".join(["bcd-registry invalidate", *options_, f"--reason {shlex.quote(reason) if reason else 'TEXT'}", "--yes"])
