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
from bcd_tuner.drift import RecordVerdict

_STYLES = {
    RecordVerdict.STEADY: "green",
    RecordVerdict.FASTER: "green",
    RecordVerdict.DRIFTED: "bold red",
    RecordVerdict.FAILED: "bold red",
    RecordVerdict.UNCLEAR: "yellow",
    RecordVerdict.UNTUNED: "dim",
}
_RATIO = "ratio: latency now over stored, each beside its untuned program's"


def render_check(report: CanaryReport) -> RenderableType:
    """Everything in 80 columns."""
    counts = Counter(record.verdict for record in report.records)
    found = ", ".join(f"{counts[verdict]} {verdict}" for verdict in RecordVerdict if counts[verdict])
    heading = Text(f"{report.network} {report.version}".strip(), style="bold")
    measured = f"{len(report.records)} of {count(report.n_known, 'record')} measured again in {duration(report.wall_s)}"
    heading.append(f": {measured}", style="not bold")
    table = (_table(report), Text(_RATIO, style="dim"), "") if report.records else ()
    return Group(heading, Text(found), "", *table, *_reasons(report), *_machine(report), *_end(report))


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
    shift = f"{machine.factor:.2f}x ({machine.low:.2f}x to {machine.high:.2f}x)"
    if machine.moved:
        slower = "slower" if machine.factor > 1 else "faster"
        yield Text(f"machine: MOVED, it is {slower} than it was: latencies are {shift}", style="yellow")
    else:
        yield Text(f"machine: as it was: latencies are {shift}")
    if machine.tuned_factor != 1.0:
        yield Text(f"         nearly all tuned programs take {machine.tuned_factor:.2f}x beside untuned ones,", style="yellow")
        yield Text("         which is the machine's doing: others use its cores?", style="yellow")


def _end(report: CanaryReport) -> Iterator[RenderableType]:
    for note in report.notes:
        yield Text(f"note: {note}", style="yellow")
    if report.marked:
        drifted, failed = (sum(r.verdict is v for r in report.records) for v in (RecordVerdict.DRIFTED, RecordVerdict.FAILED))
        recovered = sum(map(_recovered, report.records))
        marks = ((drifted, "a prior only, until it holds again"), (failed, "quarantined"), (recovered, "served again"))
        yield from (Text(f"marked: {count(n, 'record')} {what}") for n, what in marks if n)


def _recovered(record: RecordCheck) -> bool:
    return bool(record.doubted) and record.good
