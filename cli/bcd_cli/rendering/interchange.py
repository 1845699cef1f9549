"""What was imported and exported, for people."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from bcd_cli.rendering.listings import facts_table
from bcd_cli.rendering.text import count, size

if TYPE_CHECKING:
    from bcd_registry.bundle import Bundle
    from bcd_tuner.exports import ExportReport
    from bcd_tuner.imports import ImportReport

SHOWN_LINES = 10
"""Bad lines, and tasks without a record, that are shown; all are counted."""


def render_import(report: ImportReport) -> RenderableType:
    """What is new, what is not, and the first lines that cannot be used."""
    taken = report.taken
    facts = {"read": f"{count(report.n_records, 'record')} of {count(report.n_workloads, 'workload')}"}
    if report.n_failed:
        facts["failed"] = f"{count(report.n_failed, 'record')} of candidates that failed when they were measured"
    if taken.n_published:
        facts["published"] = f"{count(taken.n_published, 'record')}, {_how(report)}"
    if taken.n_priors:
        facts["priors"] = f"{count(taken.n_priors, 'record')}: tune begins with them"
    if taken.n_known:
        facts["known"] = f"{count(taken.n_known, 'record')} that the registry had already"
    if taken.n_refused:
        facts["left out"] = (
            f"{count(taken.n_refused, 'record')} that nothing beats the untuned program, which only --trust takes"
        )
    if report.n_slower:
        facts["slower"] = f"{count(report.n_slower, 'schedule')} slower here than the untuned program"
    if report.n_wrong:
        facts["wrong"] = f"{count(report.n_wrong, 'schedule')} computed something else here, and is never used"
    heading = "imported" if taken.changed else "nothing new: the registry is as it was"
    parts: list[RenderableType] = [Text(heading, style="bold"), facts_table(facts), *(Text(note) for note in taken.notes)]
    if report.bad:
        parts += ["", Text(f"{count(len(report.bad), 'line')} cannot be used", style="bold")]
        parts += [Text(f"  {line.describe()}") for line in report.bad[:SHOWN_LINES]]
    if len(report.bad) > SHOWN_LINES:
        parts.append(Text(f"  and {len(report.bad) - SHOWN_LINES} more"))
    return Group(*parts)


def render_export(report: ExportReport, folder: Path) -> RenderableType:
    """What was written, and what there was nothing to write for."""
    facts = {
        "written": f"{count(report.n_schedules, 'schedule')} of {count(report.n_tasks, 'task')}",
        "to": str(folder),
    }
    if report.n_untuned:
        facts["untuned"] = f"{count(report.n_untuned, 'task')} whose best program is the untuned one"
    if report.missing:
        facts["no record"] = count(len(report.missing), "task")
    reasons = Counter(f"{op}: {reason}" for op, reason in report.missing)
    shown = [Text(f"  {line}" + (f" ({n} tasks)" if n > 1 else "")) for line, n in list(reasons.items())[:SHOWN_LINES]]
    more = [Text(f"  and {len(reasons) - SHOWN_LINES} more")] if len(reasons) > SHOWN_LINES else []
    return Group(Text("exported", style="bold"), facts_table(facts), *shown, *more)


def render_bundle(bundle: Bundle, path: Path, n_bytes: int) -> RenderableType:
    """What the file holds."""
    network = bundle.network
    with_record = {record.workload_key for record in bundle.records}
    lacking = sum(task.workload.key not in with_record for task in network.tasks)
    facts = {
        "network": f"{network.name}:{network.version}" if network.version else network.name,
        "records": f"{count(len(bundle.records), 'published record')} in {count(len(bundle.environments), 'environment')}",
        "no record": f"{lacking} of {count(len(network.tasks), 'task')}" if lacking else "",
        "file": f"{path}, {size(n_bytes)}",
    }
    return Group(Text("exported", style="bold"), facts_table({name: fact for name, fact in facts.items() if fact}))


def _how(report: ImportReport) -> str:
    return "checked and measured here" if report.remeasured else "as the bundle says: nothing was measured here"
