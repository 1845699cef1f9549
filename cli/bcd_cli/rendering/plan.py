"""A plan for people: what would be reused, diffused and searched, and what that is expected to cost."""

from __future__ import annotations

from collections import Counter

from rich.console import Group, RenderableType
from rich.text import Text

from bcd_cli.rendering.clusters import Row, add_up, by_cluster, fold, row_of_plan
from bcd_cli.rendering.tables import plain_table
from bcd_cli.rendering.text import GRADE_ORDER, count, duration, grades, milliseconds
from bcd_registry.model import Grade
from bcd_tuner.report import Plan

_MEANING = {
    Grade.EXACT: "reused as they are",
    Grade.STALE: "searched briefly around their own old schedule",
    Grade.CLUSTER: "diffused from a known task of their cluster",
    Grade.ANCHOR: "diffused from a known task with the same main block",
    Grade.COLD: "searched, the first of each cluster for its siblings too",
}


def render_plan(plan: Plan) -> RenderableType:
    """Everything in 80 columns."""
    rows = [row_of_plan(task) for task in plan.tasks]
    table = plain_table()
    table.add_column("cluster", ratio=1, overflow="ellipsis", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("grade", overflow="fold", max_width=22)
    for title in ("tasks", "trials", "expected\ntime", "known ms"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in fold(by_cluster(rows)):
        table.add_row(*_cells(row), style="dim" if not row.cluster else "")
    if rows:
        table.add_row(*_cells(add_up(rows, "all tasks")), style="bold")
    heading = Text(f"{plan.network} {plan.version}: {count(len(plan.tasks), 'task')}; nothing was run", style="bold")
    return Group(heading, "", table, "", *_meanings(plan), "", render_expectation(plan))


def _cells(row: Row) -> list[str]:
    expected, known = duration(row.seconds), milliseconds(row.after_ms)
    return [row.label, row.signature, grades(row.grades), str(row.n_tasks), str(row.trials), expected, known]


def _meanings(plan: Plan) -> list[RenderableType]:
    counts = Counter(task.grade for task in plan.tasks)
    return [Text(f"{counts[grade]:4} {grade:8} {_MEANING[grade]}") for grade in GRADE_ORDER if counts[grade]]


def render_expectation(plan: Plan) -> Text:
    """Trials and seconds of the whole plan, and where the figure comes from."""
    seconds = None if plan.seconds_a_trial is None else plan.trials * plan.seconds_a_trial
    cost = "time not known" if seconds is None else f"about {duration(seconds)} (estimated)"
    return Text(f"expected: {count(plan.trials, 'trial')}, {cost}; {plan.basis}")
