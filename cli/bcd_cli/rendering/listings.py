"""Networks and records for people."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bcd_cli.rendering.tables import plain_table
from bcd_cli.rendering.text import count, duration, extents, milliseconds, moment, ratio, short
from bcd_registry.model import Environment, Event, NetworkSpec, NetworkVersion, RunSummary, TuningRecord, Workload


def render_networks(
    configured: Mapping[str, NetworkSpec], tuned: Sequence[NetworkVersion], pins: Collection[tuple[str, str]] = ()
) -> RenderableType:
    """Those that `--model` knows by name, then tuned ones that the file does not name.

    Args:
        pins: Name and version of those that are pinned.
    """
    by_name = {(network.name, network.version): network for network in tuned}
    table = plain_table()
    table.add_column("--model", no_wrap=True)
    table.add_column("network", no_wrap=True)
    table.add_column("tasks", justify="right")
    table.add_column("tuned", no_wrap=True)
    table.add_column("source", ratio=1, overflow="fold")
    for label, spec in configured.items():
        found = by_name.pop((spec.name, spec.version), None)
        table.add_row(label, network_title(spec.name, spec.version), *_state(found, pins), spec.source)
    for network in by_name.values():
        table.add_row("", network_title(network.name, network.version), *_state(network, pins), network.source)
    if not table.row_count:
        return Text("no network yet: give `tune --model` a file, or name some in bcd-registry.toml")
    return table


def render_network(network: NetworkVersion, runs: Sequence[RunSummary]) -> RenderableType:
    """One version: facts, tasks, runs."""
    facts = facts_table(
        {
            "network": network_title(network.name, network.version),
            "source": network.source,
            "sha256": network.digest,
            "shapes": ", ".join(f"{name} {extents(shape)}" for name, shape in network.shapes.items()) or "the model's own",
            "tuned": moment(network.created_at),
        }
    )
    tasks = plain_table()
    tasks.add_column("task", ratio=1, overflow="ellipsis", no_wrap=True)
    tasks.add_column("calls", justify="right")
    tasks.add_column("MFLOP", justify="right")
    tasks.add_column("workload", no_wrap=True)
    tasks.add_column("cluster", no_wrap=True)
    for task in sorted(network.tasks, key=lambda task: -task.workload.flops * task.weight):
        workload = task.workload
        tasks.add_row(
            workload.op, str(task.weight), f"{workload.flops / 1e6:.2f}", short(workload.key), short(workload.cluster)
        )
    history = [Text(f"{moment(r.created_at)}  {count(r.trials, 'trial')} in {duration(r.tuning_s)}{_cut(r)}") for r in runs]
    return Group(facts, "", tasks, "", Text(f"{count(len(runs), 'run')}, newest first", style="bold"), *history)


def render_records(records: Sequence[TuningRecord], workloads: Mapping[str, Workload]) -> RenderableType:
    """One line a record."""
    if not records:
        return Text("no records")
    table = plain_table()
    for title in ("record", "state", "workload"):
        table.add_column(title, no_wrap=True)
    table.add_column("", ratio=1, overflow="ellipsis", no_wrap=True)
    for title in ("ms", "spread", "trials"):
        table.add_column(title, justify="right", no_wrap=True)
    for record in records:
        known = workloads.get(record.workload_key)
        latency = [milliseconds(record.median_s * 1e3), milliseconds(record.spread_s * 1e3)]
        label = known.op if known else ""
        table.add_row(record.id[:8], _standing(record), record.workload_key[:8], label, *latency, str(record.trials))
    return table


def render_record(
    record: TuningRecord, workload: Workload | None, environment: Environment, events: Sequence[Event] = ()
) -> RenderableType:
    """Everything about one record but its trace.

    Args:
        events: What was said of it later, newest first.
    """
    untuned_ms = None if record.untuned_s is None else record.untuned_s * 1e3
    facts = {
        "record": record.id,
        "state": str(record.state) + (f": {record.reason}" if record.reason else ""),
        "workload": record.workload_key,
        "what": f"{workload.op} {extents(workload.extents)}" if workload else "not known any more",
        "latency": f"{milliseconds(record.median_s * 1e3)} ms, spread {milliseconds(record.spread_s * 1e3)} ms"
        f" over {count(len(record.run_times_s), 'run')}",
        "untuned": f"{milliseconds(untuned_ms)} ms, {ratio(untuned_ms, record.median_s * 1e3)} of this",
        "searched": f"{count(record.trials, 'trial')}, "
        + (f"to the end of --trials {record.depth}" if record.depth else "cut short"),
        "diffused from": record.parent_id or "nothing: found by search",
        "ranked by": f"cost model {record.cost_model_id}" if record.cost_model_id else "no stored cost model",
        "run": f"{record.run_id}, {moment(record.created_at)}",
        **_doubts(record),
        **{f"env {name}": str(value) for name, value in environment.as_json().items()},
    }
    decisions = [f"{kind} {list(value) if isinstance(value, tuple) else value}" for kind, value in record.decisions]
    listed = (Text(f"  {line}") for line in decisions)
    return Group(facts_table(facts), "", Text("decisions", style="bold"), *listed, *_events(events))


def facts_table(facts: Mapping[str, str]) -> Table:
    """Names and values in two columns."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in facts.items():
        grid.add_row(name, Text(value))
    return grid


def _standing(record: TuningRecord) -> str:
    """Its state, or what keeps it from being served in that."""
    return "invalidated" if record.invalidated else f"{record.state}, drifted" if record.drift else str(record.state)


def _doubts(record: TuningRecord) -> dict[str, str]:
    facts = {"drifted": record.drift} if record.drift else {}
    return {**facts, **({"taken back": f"by event {record.invalidated}"} if record.invalidated else {})}


def _events(events: Sequence[Event]) -> Iterator[RenderableType]:
    if events:
        yield ""
        yield Text("events, newest first", style="bold")
    for event in events:
        others = f" with {count(len(event.records) - 1, 'other')}" if len(event.records) > 1 else ""
        yield Text(f"  {moment(event.created_at)}  {event.kind}{others} by {event.id[:12]}: {event.reason}")


def network_title(name: str, version: str) -> str:
    """`NAME:VERSION`, or the name alone."""
    return f"{name}:{version}" if version else name


def _state(network: NetworkVersion | None, pins: Collection[tuple[str, str]]) -> tuple[str, str]:
    if network is None:
        return "-", "no"
    pinned = "\npinned" if (network.name, network.version) in pins else ""
    return str(len(network.tasks)), f"{moment(network.created_at)}{pinned}"


def _cut(run: RunSummary) -> str:
    return "" if run.finished else ", cut short"
