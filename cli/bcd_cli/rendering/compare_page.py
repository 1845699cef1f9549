"""Two versions side by side as one HTML page: no script, and nothing that it would have to fetch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from bcd_cli.rendering.charts import Bar, Line, bar_chart, line_chart
from bcd_cli.rendering.compare import between, period, verdict_text, whole
from bcd_cli.rendering.text import UNKNOWN, count, milliseconds, moment
from bcd_tuner.comparison import Comparison, Spread, Version

_STYLE = """
:root { color-scheme: light dark; --ground: #ffffff; --ink: #1c2126; --soft: #5a6570; --line: #d5dbe1;
  --s0: #1b6ca8; --s1: #b5452c; --s2: #76828d; --panel: #f4f6f8; }
@media (prefers-color-scheme: dark) { :root { --ground: #15191d; --ink: #e6eaee; --soft: #a3aeb9; --line: #36404a;
  --s0: #5aa9e6; --s1: #f0876b; --s2: #8d99a5; --panel: #1d2328; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 60rem; padding: 1.5rem; background: var(--ground); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p { margin: .25rem 0; } .soft { color: var(--soft); } a { color: var(--s0); }
.verdict { background: var(--panel); border-left: 4px solid var(--s0); padding: .75rem 1rem; margin: 1rem 0;
  font-size: 1.1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
td.n, th.n { text-align: right; }
caption { text-align: left; color: var(--soft); padding: .3rem 0; }
svg { width: 100%; height: auto; display: block; } svg text { fill: var(--ink); font: 12px system-ui, sans-serif; }
.grid { stroke: var(--line); } .spread { stroke: var(--ink); stroke-width: 1.5; }
.s0 { fill: var(--s0); } .s1 { fill: var(--s1); } .s2 { fill: var(--s2); }
.l0, .l1 { fill: none; stroke-width: 2; } .l0 { stroke: var(--s0); } .l1 { stroke: var(--s1); }
.key { display: inline-block; width: .8em; height: .8em; margin: 0 .35em 0 1em; }
.k0 { background: var(--s0); } .k1 { background: var(--s1); } .k2 { background: var(--s2); }
"""


def comparison_page(found: Comparison) -> str:
    """The whole page."""
    first, second = found.first, found.second
    title = f"{first.title} and {second.title}"
    parts = [
        f"<header><h1>{escape(title)}</h1>{''.join(map(_origin, (first, second)))}</header>",
        f'<p class="verdict">{escape(_summary(found))}</p>',
        _section("Latency, end to end", [_latency_chart(found), _figures(found)]),
        _section(
            "Tuning", [_key(first, second), _curve_chart(found, 0, "seconds of tuning"), _curve_chart(found, 1, "trials")]
        ),
        _section("Tasks", [_task_text(found), _costly_chart(found), _costly_table(found)]),
        _section("To know", [f"<ul>{''.join(f'<li>{escape(note)}</li>' for note in found.notes)}</ul>"]) if found.notes else "",
        _links(found),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}: comparison</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in parts if part)
        + "\n</main>\n</body>\n</html>\n"
    )


def _summary(found: Comparison) -> str:
    """The answer in a sentence."""
    latency, speed = verdict_text(found.latency), verdict_text(found.speedup)
    effort = f"{whole(found.second.trials)} trials after {whole(found.first.trials)}"
    return f"Latency of {found.second.label} against {found.first.label}: {latency}. Speed-up over untuned: {speed}. {effort}."


def _origin(version: Version) -> str:
    runs = f"{count(len(version.run_ids), 'run')}, the newest {version.run_ids[0][:8]} of {moment(version.created_at)}"
    where = f", on {version.machine}" if version.machine else ""
    text = (
        f"{version.label}: {version.title}, {count(version.n_tasks, 'task')}; {runs}{where}, {count(version.threads, 'thread')}"
    )
    return f'<p class="soft">{escape(text)}</p>'


def _section(title: str, parts: Iterable[str]) -> str:
    return f"<section><h2>{escape(title)}</h2>{''.join(parts)}</section>"


def _key(first: Version, second: Version) -> str:
    marks = "".join(
        f'<span class="key k{number}" aria-hidden="true"></span>{escape(version.label)}'
        for number, version in enumerate((first, second))
    )
    return f'<p class="soft">{marks}</p>'


def _latency_chart(found: Comparison) -> str:
    bars = []
    for number, version in enumerate((found.first, found.second)):
        spreads = (("untuned", version.untuned, 2), ("tuned", version.tuned, number), ("onnxruntime", version.onnxruntime, 2))
        bars += [_bar(f"{version.label[:14]} {name}", spread, series) for name, spread, series in spreads if spread is not None]
    if not bars:
        return "<p>No end-to-end latency was measured.</p>"
    return bar_chart("Latency end to end", bars, "milliseconds; the lines are from the 10th to the 90th percentile")


def _bar(label: str, spread: Spread, series: int) -> Bar:
    return Bar(label, spread.median, series, f"{milliseconds(spread.median)} ms", spread.low, spread.high)


def _figures(found: Comparison) -> str:
    first, second = found.first, found.second
    rows = [
        ("end to end, ms", between(first.tuned), between(second.tuned), verdict_text(found.latency)),
        ("untuned, ms", between(first.untuned), between(second.untuned), ""),
        ("onnxruntime, ms", between(first.onnxruntime), between(second.onnxruntime), ""),
        ("speed-up over untuned", between(first.speedup, "x"), between(second.speedup, "x"), verdict_text(found.speedup)),
        ("tuning", period(first.tuning_s), period(second.tuning_s), verdict_text(found.tuning_s)),
        ("trials", whole(first.trials), whole(second.trials), verdict_text(found.trials)),
        ("grades", _grades(first), _grades(second), ""),
    ]
    known = [row for row in rows if row[1:3] != (UNKNOWN, UNKNOWN)]
    return _table("Medians, with what they scatter between", ["", first.label, second.label, ""], known, numbers=(1, 2))


def _grades(version: Version) -> str:
    return ", ".join(f"{n} {grade}" for grade, n in version.grades.items())


def _curve_chart(found: Comparison, axis: int, unit: str) -> str:
    lines = [
        Line(version.label, [(float(point[axis]), point[2]) for point in version.curve], number)
        for number, version in enumerate((found.first, found.second))
    ]
    return line_chart(f"Estimated latency against {unit}", lines, unit, "estimated latency, ms")


def _task_text(found: Comparison) -> str:
    tasks, shares = found.tasks, found.tasks.shares
    text = (
        f"Of the {count(found.second.n_tasks, 'task')} of {found.second.label}, {tasks.shared} are shared with "
        f"{found.first.label} ({shares['shared']:.0%} of the time), "
        f"{tasks.sibling} are siblings of its tasks ({shares['sibling']:.0%}) and "
        f"{tasks.new} are new ({shares['new']:.0%}). {count(tasks.gone, 'task')} of {found.first.label} are gone."
    )
    return f"<p>{escape(text)}</p>"


def _costly_chart(found: Comparison) -> str:
    bars = []
    for task in found.costly:
        if task.before_ms is not None:
            bars.append(Bar(f"{task.op[:24]}", task.before_ms, 0, f"{milliseconds(task.before_ms)} ms"))
        bars.append(Bar(f"{task.op[:24]}", task.now_ms, 1, f"{milliseconds(task.now_ms)} ms, {task.share:.0%}"))
    title = f"What costs most in {found.second.label}"
    return _key(found.first, found.second) + bar_chart(
        title, bars, "milliseconds: latency of a task times its calls (estimated)"
    )


def _costly_table(found: Comparison) -> str:
    rows = [
        (
            task.op,
            str(task.weight),
            task.grade,
            task.kind,
            milliseconds(task.before_ms),
            milliseconds(task.now_ms),
            f"{task.share:.0%}",
            task.workload_key[:12],
        )
        for task in found.costly
    ]
    heads = ["task", "calls", "grade", "", f"ms in {found.first.label}", f"ms in {found.second.label}", "share", "workload"]
    return _table("The tasks that cost most", heads, rows, numbers=(1, 4, 5, 6))


def _table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[int]) -> str:
    def cells(row: Sequence[str], tag: str) -> str:
        return "".join(
            f"<{tag}{' class=n' if number in numbers else ''}>{escape(cell)}</{tag}>" for number, cell in enumerate(row)
        )

    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return (
        f'<div class="wide"><table><caption>{escape(caption)}</caption>'
        f"<thead><tr>{cells(heads, 'th')}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _links(found: Comparison) -> str:
    if found.mlflow_url is None:
        return ""
    return f'<p><a href="{escape(found.mlflow_url)}">Both runs in MLflow</a></p>'
