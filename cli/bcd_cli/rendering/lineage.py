"""The tree of a record's lineage for people."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from bcd_cli.rendering.text import count, extents, milliseconds
from bcd_registry.lineage import Lineage
from bcd_registry.model import TuningRecord

_INDENT = 2
_DEEPEST = 16
"""Generations that are indented; deeper ones are as far to the right as this."""


def render_lineage(lineage: Lineage) -> RenderableType:
    """One entry a record, indented by its generation; the one that was asked for is bold and marked."""
    parts: list[RenderableType] = []
    if lineage.forgotten:
        parts.append(Text(f"{lineage.forgotten[:8]}, the prior of the first, is not stored any more", style="dim"))
    for generation, record in lineage.nodes():
        asked = record.id == lineage.record.id
        text = Text("> " if asked else "- ", style="bold" if asked else "")
        text.append(", ".join(_facts(lineage, record)))
        marks = lineage.marks(record)
        if marks:
            text.append(f" [{', '.join(marks)}]", style="yellow")
        parts.append(Padding(text, (0, 0, 0, _INDENT * min(generation, _DEEPEST)), expand=False))
    ancestors, descendants = count(len(lineage.ancestors), "ancestor"), count(len(lineage.descendants), "descendant")
    return Group(*parts, "", Text(f"{ancestors}, {descendants}", style="bold"))


def _facts(lineage: Lineage, record: TuningRecord) -> Iterator[str]:
    workload = lineage.workloads.get(record.workload_key)
    what = f"{workload.op} {extents(workload.anchor_extents or workload.extents)}" if workload else "workload not stored"
    yield f"{record.id[:8]} {what}"
    yield f"{record.state} {milliseconds(record.median_s * 1e3)} ms"
    yield f"run {record.run_id[:8]}"
    if record.cost_model_id:
        yield f"ranked by {record.cost_model_id[:8]}"
