"""Why tasks are graded as they are, and where two things differ, for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from bcd_cli.rendering.plan import render_expectation
from bcd_cli.rendering.tables import plain_table
from bcd_cli.rendering.text import count, duration, extents, milliseconds, short
from bcd_registry.descriptions import plain
from bcd_registry.explain import Closest, Explanation, Relation
from bcd_registry.model import Grade, Json, Workload, canonical_json
from bcd_registry.naming import Comparison
from bcd_registry.staleness import Difference
from bcd_tuner.explaining import ExplainedPlan, ExplainedTask

_WHOSE = {
    Relation.WORKLOAD: "of its own",
    Relation.CLUSTER: "of its cluster",
    Relation.ANCHOR: "with its main block",
    Relation.OP: "of its operator alone",
}
_SHOWN_REASONS = 3
_LONGEST_CELL = 240


def render_explained(explained: ExplainedPlan, *, every_field: bool = False) -> RenderableType:
    """A paragraph for each task, the costliest first; exact ones in one line.

    Args:
        every_field: List every field that differs, notes and exact tasks included, and leave out what the whole network costs.
    """
    plan = explained.plan
    heading = Text(f"{plan.network} {plan.version}: {count(len(plan.tasks), 'task')}; nothing was run", style="bold")
    exact = [task for task in explained.tasks if task.plan.grade is Grade.EXACT and not every_field]
    others = [task for task in explained.tasks if task not in exact]
    others.sort(key=lambda task: (-(task.plan.seconds or 0.0), -task.plan.trials, task.plan.name))
    parts: list[RenderableType] = [heading]
    for task in others:
        parts += ["", *_paragraph(task, every_field=every_field)]
    if exact:
        parts += ["", _exact(exact)]
    return Group(*parts) if every_field else Group(*parts, "", render_expectation(plan))


def render_comparison(found: Comparison) -> RenderableType:
    """One row for each thing that differs."""
    heading = Text(f"{found.kind}: A is {short(found.there)}, B is {short(found.here)}", style="bold")
    parts: list[RenderableType] = [heading]
    if found.workloads is not None:
        parts += [Text(f"{name}: {_workload(workload)}") for name, workload in zip("AB", found.workloads, strict=True)]
    rows = [(d.where, str(d.aspect), d.there, d.here) for d in found.workload]
    rows += [row for difference in found.environment for row in _environment_rows(difference)]
    if not rows:
        return Group(*parts, "", Text("nothing differs"))
    table = plain_table()
    table.add_column("where", ratio=3, overflow="fold")
    table.add_column("what", no_wrap=True)
    table.add_column("A", ratio=3, overflow="fold")
    table.add_column("B", ratio=3, overflow="fold")
    for where, what, there, here in rows:
        table.add_row(Text(where), what, Text(_cell(there)), Text(_cell(here)))
    return Group(*parts, "", table)


def _paragraph(task: ExplainedTask, *, every_field: bool) -> Iterator[RenderableType]:
    plan, explanation = task.plan, task.explanation
    cost = "time not known" if plan.seconds is None else f"about {duration(plan.seconds)}"
    title = Text(f"{plan.op} {short(plan.workload_key)}", style="bold")
    title.append(f", {count(plan.weight, 'call')}: {plan.grade}, {count(plan.trials, 'trial')}, {cost}", style="not bold")
    yield title
    if every_field:
        yield _indented(f"task {plan.name}, {extents(explanation.workload.extents)}")
    yield _indented(explanation.reason)
    if explanation.closest is not None:
        yield from _closest(explanation, explanation.closest, every_field=every_field)
    yield from _left_out(explanation, every_field=every_field)


def _closest(explanation: Explanation, closest: Closest, *, every_field: bool) -> Iterator[RenderableType]:
    """What is closest, and of what differs all that the reason does not say already."""
    name = f"workload {short(closest.workload.key)}" if closest.record is None else f"record {closest.record.id[:8]}"
    title = f"closest: {name} {_WHOSE[closest.relation]}"
    said = explanation.reason.split("; ")
    phrases = closest.phrases(brief=not every_field)
    if every_field:
        yield _indented(title)
        yield from (_indented(f"- {phrase}") for phrase in phrases)
        return
    unsaid = [phrase for phrase in phrases if phrase not in said]
    if unsaid or closest.relation is not Relation.WORKLOAD:
        yield _indented("; ".join([title, *unsaid]))


def _left_out(explanation: Explanation, *, every_field: bool) -> Iterator[RenderableType]:
    items = explanation.left_out
    shown = items if every_field else items[:_SHOWN_REASONS]
    if not shown:
        return
    n_more = sum(len(item.records) for item in items[len(shown) :])
    more = [f"{n_more} more for other reasons"] if n_more else []
    yield _indented("left out: " + "; ".join([*(item.describe() for item in shown), *more]))


def _exact(tasks: Sequence[ExplainedTask]) -> Text:
    known = sum((task.plan.known_ms or 0.0) * task.plan.weight for task in tasks)
    as_is = "it is" if len(tasks) == 1 else "they are"
    return Text(f"{count(len(tasks), 'exact task')}: reused as {as_is}, {milliseconds(known)} ms in all")


def _indented(text: str) -> Padding:
    return Padding(Text(text), (0, 0, 0, 2), expand=False)


def _workload(workload: Workload) -> str:
    return f"{short(workload.key)} {workload.op} {extents(workload.anchor_extents or workload.extents)}"


def _environment_rows(difference: Difference) -> Iterator[tuple[str, str, Json, Json]]:
    """One row a field; of tables and lists only what differs."""
    there, here, what = difference.then, difference.now, str(difference.field_class)
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        for name in sorted({*there, *here}):
            if canonical_json(there.get(name)) != canonical_json(here.get(name)):
                yield f"{difference.field}.{name}", what, there.get(name), here.get(name)
    elif isinstance(there, list | tuple) and isinstance(here, list | tuple):
        only_there, only_here = [v for v in there if v not in here], [v for v in here if v not in there]
        yield difference.field, what, "+".join(map(plain, only_there)), "+".join(map(plain, only_here))
    else:
        yield difference.field, what, there, here


def _cell(value: Json) -> str:
    if value is None or value == "":
        return "-"
    text = value if isinstance(value, str) else canonical_json(value)
    return text if len(text) <= _LONGEST_CELL else f"{text[: _LONGEST_CELL - 1]}…"
