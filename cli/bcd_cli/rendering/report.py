"""The end of a tune for people: what each cluster cost and gave, then the whole network as it was measured."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bcd_cli.rendering.clusters import Row, add_up, by_cluster, fold, row_of_report
from bcd_cli.rendering.tables import plain_table
from bcd_cli.rendering.text import count, duration, grades, milliseconds, ratio, seconds
from bcd_registry.model import Grade
from bcd_tuner.report import TuneReport

_ESTIMATED = "est. ms: each task's own latency times its calls, added up; not the network's"


def render_report(report: TuneReport, ui_command: str | None) -> RenderableType:
    """Everything in 80 columns, but paths and commands, which are not broken: print it with `crop=False`.

    Args:
        ui_command: What shows the run in MLflow; None when it was not logged there.
    """
    parts: list[RenderableType] = [_heading(report), "", _cluster_table(report), Text(_ESTIMATED, style="dim"), ""]
    parts += [_network_table(report), *_verdict(report), "", *_effort(report), *_notes(report)]
    parts += list(_where_to_look(report, ui_command))
    return Group(*parts)


def _heading(report: TuneReport) -> Text:
    known = sum(task.grade is Grade.EXACT for task in report.tasks)
    text = Text(f"{report.network} {report.version}", style="bold")
    text.append(f": {count(len(report.tasks), 'task')}, {known} exact; {count(report.trials, 'trial')}", style="not bold")
    return text


def _cluster_table(report: TuneReport) -> Table:
    rows = [row_of_report(task) for task in report.tasks]
    table = plain_table()
    table.add_column("cluster", ratio=1, overflow="ellipsis", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("grade", overflow="fold", max_width=17)
    for title in ("tasks", "trials", "time s", "est. ms\nuntuned", "est. ms\ntuned"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in fold(by_cluster(rows)):
        table.add_row(*_cells(row), style="dim" if not row.cluster else "")
    if rows:
        table.add_row(*_cells(add_up(rows, "all")), style="bold")
    return table


def _cells(row: Row) -> list[str]:
    latencies = [milliseconds(row.before_ms), milliseconds(row.after_ms)]
    return [row.label, row.signature, grades(row.grades), str(row.n_tasks), str(row.trials), seconds(row.seconds), *latencies]


def _network_table(report: TuneReport) -> Table:
    latency = report.latency_ms
    table = plain_table(expand=False)
    table.add_column(f"measured end to end, {count(latency.threads, 'thread')}" if latency.threads else "measured end to end")
    for title in ("median ms", "10th-90th percentile", "speed-up"):
        table.add_column(title, justify="right")
    for name, median, spread in (
        ("untuned", latency.untuned, latency.untuned_range),
        ("tuned", latency.tuned, latency.tuned_range),
        ("onnxruntime", latency.onnxruntime, latency.onnxruntime_range),
    ):
        if median is not None or name != "onnxruntime":
            between = "-" if spread is None else f"{milliseconds(spread[0])} - {milliseconds(spread[1])}"
            style = "bold" if name == "tuned" else ""
            table.add_row(name, milliseconds(median), between, ratio(latency.untuned, median), style=style)
    return table


def _verdict(report: TuneReport) -> Iterator[RenderableType]:
    if report.checked:
        yield Text("checked: the tuned network's outputs equal the untuned one's", style="green")
        if report.equals_onnxruntime:
            yield Text("         and the untuned one's equal onnxruntime's", style="green")
    elif report.interrupted:
        yield Text("not checked: cut short before that", style="yellow")
    else:
        yield Text("NOT EQUAL: the tuned network's outputs differ from the untuned one's", style="bold red")


def _effort(report: TuneReport) -> Iterator[RenderableType]:
    split = report.time_s
    line = f"{count(report.trials, 'trial')}, {duration(split.total)} of tuning, {duration(report.wall_s)} in all"
    if split.total > 0:
        parts = (("search", split.search), ("build", split.build), ("run", split.run), ("other", split.other))
        line += "\n  " + ", ".join(f"{name} {100 * spent / split.total:.0f}%" for name, spent in parts)
        if report.first_candidate_s is not None:
            line += f"; first candidate after {duration(report.first_candidate_s)}"
    yield Text(line)
    if (accuracy := report.cost_model.get("rank_accuracy")) is not None:
        samples, known = (int(report.cost_model[name]) for name in ("n_samples", "n_pretrained"))
        learnt = f"cost model: {count(samples, 'sample')}, {known} from the registry"
        yield Text(f"{learnt}; orders {100 * accuracy:.0f}% of pairs right\n  on workloads it was not trained on", style="dim")
    saving = report.saving
    if saving.trials > 0:
        spared = f"about {duration(saving.seconds)}" if saving.seconds is not None else "time not known"
        yield Text(f"saved (estimated): {count(saving.trials, 'trial')}, {spared}")
        if saving.basis:
            yield Text(f"  by {saving.basis}", style="dim")


def _notes(report: TuneReport) -> Iterator[RenderableType]:
    for note in report.notes:
        yield Text(f"note: {note}", style="yellow")


def _where_to_look(report: TuneReport, ui_command: str | None) -> Iterator[RenderableType]:
    if report.curve_png:
        yield Text(f"picture: {report.curve_png}", no_wrap=True, overflow="ignore")
    if ui_command and report.mlflow_run_id:
        yield Text(f"MLflow:  {ui_command}", no_wrap=True, overflow="ignore")
