"""What was compiled and how fast it is, for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bcd_cli.rendering.tables import plain_table
from bcd_cli.rendering.text import count, milliseconds, ratio
from bcd_tuner.bench import BenchReport, Timing
from bcd_tuner.published import Coverage
from bcd_tuner.shipping import CompileReport

_MAX_ROWS = 10


def render_compiled(report: CompileReport) -> RenderableType:
    """Everything in 80 columns, but the folder, which is not broken: print it with `crop=False`."""
    manifest = report.manifest
    heading = Text(f"{manifest['network']} {manifest['version']}".strip(), style="bold")
    heading.append(f": {coverage_line(report.coverage)}", style="not bold")
    parts: list[RenderableType] = [heading, "", timings_table(report.timings, int(manifest["threads"])), *_verdict(report)]
    if manifest["untuned"]:
        parts += ["", _untuned_table(manifest["untuned"])]
    parts += [*note_lines(report.notes), ""]
    parts.append(
        Text(f"written: {report.folder}/ ({', '.join([*manifest['files'], 'manifest.json'])})", no_wrap=True, overflow="ignore")
    )
    parts.append(Text(f"try it:  python {report.folder}/load.py", no_wrap=True, overflow="ignore"))
    return Group(*parts)


def render_bench(report: BenchReport) -> RenderableType:
    """What each program took."""
    heading = Text(f"{report.network} {report.version}".strip(), style="bold")
    return Group(heading, "", timings_table(report.timings, report.threads), *note_lines(report.notes))


def timings_table(timings: Mapping[str, Timing], threads: int) -> Table:
    """One line a program; speed-ups are over the untuned one."""
    table = plain_table(expand=False)
    table.add_column(f"measured end to end, {count(threads, 'thread')}")
    untuned = timings["untuned"].median if "untuned" in timings else None
    for title in ("median ms", "10th-90th percentile", "runs", *(["speed-up"] if untuned else [])):
        table.add_column(title, justify="right")
    for name, timing in timings.items():
        between = f"{milliseconds(timing.p10)} - {milliseconds(timing.p90)}"
        cells = [name, milliseconds(timing.median), between, str(timing.runs)]
        table.add_row(*cells, *([ratio(untuned, timing.median)] if untuned else []), style="bold" if name == "tuned" else "")
    return table


def coverage_line(coverage: Coverage) -> str:
    """`70 of 76 tasks published, 98.3% of the untuned time (estimated)`."""
    return (
        f"{coverage.n_exact} of {count(coverage.n_tasks, 'task')} published, "
        f"{100 * coverage.of_time:.1f}% of the untuned time (estimated)"
    )


def note_lines(notes: Sequence[str]) -> Iterator[RenderableType]:
    """Warnings."""
    for note in notes:
        yield Text(f"note: {note}", style="yellow")


def _verdict(report: CompileReport) -> Iterator[RenderableType]:
    inputs = ", ".join(case.inputs for case in report.cases)
    yield Text(f"verified: its outputs equal the untuned network's\n  on inputs: {inputs}", style="green")
    if all(case.import_error == "" for case in report.cases):
        yield Text("  and the untuned one's equal onnxruntime's", style="green")


def _untuned_table(untuned: Sequence[Mapping[str, object]]) -> Table:
    """The costliest tasks without a schedule, and how many more there are."""
    table = plain_table()
    table.add_column("untuned task", ratio=1, overflow="ellipsis", no_wrap=True)
    table.add_column("workload", no_wrap=True)
    table.add_column("calls", justify="right")
    table.add_column("grade", no_wrap=True)
    for task in untuned[:_MAX_ROWS]:
        table.add_row(str(task["op"]), str(task["workload"])[:12], str(task["weight"]), str(task["grade"]))
    if len(untuned) > _MAX_ROWS:
        table.add_row(f"{len(untuned) - _MAX_ROWS} more, see manifest.json", style="dim")
    return table
