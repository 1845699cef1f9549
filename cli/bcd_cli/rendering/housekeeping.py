"""What can go, what is there, and what was published from a spool, for people."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bcd_cli.rendering.listings import facts_table
from bcd_cli.rendering.tables import plain_table
from bcd_cli.rendering.text import UNKNOWN, count, duration, size
from bcd_registry.housekeeping import KEEP_MODELS, Garbage, Statistics
from bcd_registry.model import Grade, RecordState
from bcd_registry.spool import Published

_MEANING = {
    Grade.EXACT: "reused as they were",
    Grade.STALE: "their own old schedule was the prior",
    Grade.CLUSTER: "a sibling's schedule was the prior",
    Grade.ANCHOR: "a schedule of their main block was the prior",
    Grade.COLD: "searched from nothing",
}


def render_garbage(garbage: Garbage, *, keep: int, grace_s: float, command: str | None) -> RenderableType:
    """What can go, or what went.

    Args:
        command: What removes it; None when it was removed.
    """
    if not (garbage.records or garbage.cost_models or garbage.blobs):
        waiting = f"; {count(garbage.n_waiting, 'blob')} without a name not old enough yet" if garbage.n_waiting else ""
        return Text(f"nothing to remove{waiting}")
    facts = {"records": "none", "blobs": "none"}
    if garbage.records:
        better = f"{keep} better ones" if keep > 1 else "a better one"
        facts["records"] = f"{len(garbage.records)}, beaten by {better} of their workload and environment"
    if garbage.trace_bytes:
        facts["traces"] = f"about {size(garbage.trace_bytes)} of these records, once they are {_hours(grace_s)} old"
    if garbage.cost_models:
        bytes_ = f", {size(garbage.model_bytes)} once they are {_hours(grace_s)} old" if garbage.model_bytes else ""
        facts["cost models"] = f"{len(garbage.cost_models)}, {KEEP_MODELS} newer ones of their target stay{bytes_}"
    if garbage.blobs:
        facts["blobs"] = f"{len(garbage.blobs)}, {size(garbage.blob_bytes)}, named by nothing for {_hours(grace_s)}"
    if garbage.n_waiting:
        facts["waiting"] = f"{count(garbage.n_waiting, 'blob')} named by nothing, not that old yet"
    if command is None:
        return Group(Text("removed", style="bold"), facts_table(facts))
    how = Text(f"nothing was removed; this does it:\n  {command}", no_wrap=True, overflow="ignore")
    return Group(Text("can go", style="bold"), facts_table(facts), "", how)


def render_statistics(found: Statistics) -> RenderableType:
    """Everything in 80 columns."""
    parts: list[RenderableType] = [_holdings(found)]
    if found.grades:
        parts += ["", _grades(found)]
    if found.causes:
        parts += ["", _causes(found.causes)]
    if found.runs_read:
        parts += ["", _saved(found)]
    return Group(*parts)


def render_published(published: Published) -> RenderableType:
    """What became of the spools; what was set aside was said when it happened."""
    lines = []
    if published.n_files:
        runs = ", ".join(run[:8] for run in published.runs)
        lines.append(f"published {count(published.n_files, 'file')} with {count(published.n_records, 'record')} of run {runs}")
    if published.set_aside:
        lines.append(f"set aside: {count(len(published.set_aside), 'file')}")
    if published.foreign:
        lines.append("left alone, meant for another registry (--all publishes it here):")
        lines += [f"  {folder}" for folder in published.foreign]
    return Group(*(Text(line, no_wrap=True, overflow="ignore") for line in lines or ["nothing is spooled"]))


def _holdings(found: Statistics) -> Table:
    rows = found.rows
    states = [f"{rows.get(state, 0)} {state}" for state in reversed(RecordState) if state is not RecordState.QUARANTINED]
    states.append(f"{rows.get(RecordState.QUARANTINED, 0)} quarantined")
    if rows.get("invalidated"):
        states.append(f"{rows['invalidated']} of them invalidated")
    read = f", the newest {found.runs_read} added up here" if found.runs_read < rows.get("runs", 0) else ""
    return facts_table(
        {
            "records": ", ".join(states),
            "workloads": f"{rows.get('workloads', 0)} in {count(rows.get('clusters', 0), 'cluster')}",
            "networks": f"{count(rows.get('networks', 0), 'version')}, {rows.get('pins', 0)} pinned",
            "environments": str(rows.get("environments", 0)),
            "refutations": str(rows.get("refutations", 0)),
            "cost models": str(rows.get("cost_models", 0)),
            "blobs": f"{found.n_blobs}, {size(found.blob_bytes)}",
            "runs": f"{rows.get('runs', 0)}{read}: {count(found.trials, 'trial')}, {duration(found.tuning_s)} of tuning",
        }
    )


def _grades(found: Statistics) -> Table:
    whole = sum(found.grades.values())
    table = plain_table(expand=False)
    table.add_column("grade", no_wrap=True)
    table.add_column("tasks", justify="right")
    table.add_column("share", justify="right")
    table.add_column("")
    for grade, tasks in found.grades.items():
        meaning = _MEANING[Grade(grade)] if grade in list(Grade) else UNKNOWN
        table.add_row(grade, str(tasks), f"{100 * tasks / whole:.0f}%", meaning)
    return table


def _causes(causes: Mapping[str, int]) -> Table:
    table = plain_table(expand=False)
    table.add_column("why not exact", no_wrap=True)
    table.add_column("tasks", justify="right")
    for cause, tasks in causes.items():
        table.add_row(Text(cause), str(tasks))
    return table


def _saved(found: Statistics) -> Text:
    line = f"saved (estimated): {count(found.saved_trials, 'trial')}, about {duration(found.saved_s)}"
    if found.runs_without_estimate:
        line += f"; {count(found.runs_without_estimate, 'run')} had no earlier one to go by"
    return Text(line)


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.3g} h"
