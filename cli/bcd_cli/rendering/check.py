"""The end of a check for people: each record as stored and as it is now, then the machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bcd_cli.rendering.tables import plain_table
from bcd_cli.rendering.text import UNKNOWN, count, duration, milliseconds
from bcd_tuner.canary_report import CanaryReport, RecordCheck
from bcd_tuner.drift import Machine, RecordVerdict

_STYLES = {
    RecordVerdict.STEADY: "green",
    RecordVerdict.FASTER: "green",
    RecordVerdict.DRIFTED: "bold red",
    RecordVerdict.FAILED: "bold red",
    RecordVerdict.UNCLEAR: "yellow",
    RecordVerdict.UNTUNED: "dim",
}
_RATIO = "ratio: latency now over stored, each beside its untuned program, measured in turns"


def render_check(report: CanaryReport) -> RenderableType:
    """Everything in 80 columns."""
    counts = Counter(record.verdict for record in report.records)
    found = ", ".join(f"{counts[verdict]} {verdict}" for verdict in RecordVerdict if counts[verdict])
    heading = Text(f"{report.network} {report.version}".strip(), style="bold")
    measured = f"{len(report.records)} of {count(report.n_known, 'record')} measured again in {duration(report.wall_s)}"
    heading.append(f": {measured}; {found}", style="not bold")
    return Group(heading, "", _table(report), Text(_RATIO, style="dim"), "", *_reasons(report), *_machine(report), *_end(report))


def _table(report: CanaryReport) -> Table:
    table = plain_table()
    table.add_column("task", ratio=1, overflow="ellipsis", no_wrap=True)
    table.add_column("record", no_wrap=True)
    for title in ("calls", "stored ms", "now ms", "ratio"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for record in report.records:
        ratio = UNKNOWN if record.factor is None else f"{record.factor:.2f}x"
        latencies = [milliseconds(record.stored_ms), milliseconds(record.now_ms)]
        verdict = Text(str(record.verdict), style=_STYLES[record.verdict])
        table.add_row(record.op, record.record[:8], str(record.weight), *latencies, ratio, verdict)
    return table


def _reasons(report: CanaryReport) -> Iterator[RenderableType]:
    explained = [record for record in report.records if record.reason]
    for record in explained:
        yield Text(f"{record.record[:8]}: {record.reason}", style="" if record.bad else "dim")
    if explained:
        yield Text("")


def _machine(report: CanaryReport) -> Iterator[RenderableType]:
    machine = report.machine
    if machine is None:
        yield Text("machine: nothing could be measured", style="yellow")
        return
    said = f"{machine.factor:.2f}x ({machine.low:.2f}x to {machine.high:.2f}x, {count(machine.n_programs, 'program')})"
    if machine.moved:
        slower = "slower" if machine.factor > 1 else "faster"
        yield Text(f"machine: MOVED, it is {slower} than when they were stored: latencies are {said}", style="yellow")
    else:
        yield Text(f"machine: as it was when they were stored: latencies are {said}")
    yield from _shared(machine)


def _shared(machine: Machine) -> Iterator[RenderableType]:
    """What all tuned programs have in common, which is no record's doing."""
    if machine.tuned_factor != 1.0:
        text = f"nearly all tuned programs take {machine.tuned_factor:.2f}x beside untuned ones: the machine's doing"
        yield Text(f"         {text}\n         (are other processes on its cores?)", style="yellow")


def _end(report: CanaryReport) -> Iterator[RenderableType]:
    for note in report.notes:
        yield Text(f"note: {note}", style="yellow")
    changed = [record for record in report.records if record.bad or _recovered(record)]
    if changed and report.marked:
        yield Text("; ".join(_marks(changed)))


def _marks(changed: list[RecordCheck]) -> Iterator[str]:
    """What the registry does with them from now on."""
    drifted, failed = (sum(c.verdict is v for c in changed) for v in (RecordVerdict.DRIFTED, RecordVerdict.FAILED))
    recovered = sum(map(_recovered, changed))
    if drifted:
        yield f"{count(drifted, 'record')} only a prior until it holds again" if drifted == 1 else f"{drifted} records only priors"
    if failed:
        yield f"{count(failed, 'record')} quarantined"
    if recovered:
        yield f"{count(recovered, 'record')} served again"


def _recovered(record: RecordCheck) -> bool:
    return bool(record.doubted) and record.good
