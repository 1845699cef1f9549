"""The tables of BENCHMARKS.md. Each is empty while nothing of it was measured."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from .compare import (
    NEAR,
    Goal,
    Spread,
    Table,
    all_versus,
    best_mode,
    goals,
    in_words,
    library_medians,
    seconds_to,
    speed_up,
)
from .parts import PARTS, VARIANTS, is_whole, missing_modes
from .results import Result
from .scale import Scale, median, percentile

MODES = ("a", "b", "c", "d", "e")

Row = Sequence[object]


def as_table(header: Sequence[str], rows: Iterable[Row]) -> str:
    """Markdown; empty without rows."""
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n".join(["| " + " | ".join(header) + " |", "|" + "---|" * len(header), *lines]) + "\n" if lines else ""


def section(title: str, text: str, remark: str = "") -> str:
    """A heading and what is under it; empty without text."""
    parts = [f"## {title}\n", text, *([remark + "\n"] if remark else [])]
    return "\n".join(parts) if text else ""


def goals_section(table: Table) -> str:
    """Every goal, measured or not."""
    rows = [(goal.text, goal.needed, goal.figure or "not measured", _verdict(goal)) for goal in goals(table)]
    return section("Goals", as_table(("goal", "needed", "found", ""), rows))


def _verdict(goal: Goal) -> str:
    if goal.met is not None:
        return "met" if goal.met else "**not met**"
    return f"open: {', '.join(goal.missing)} not measured"


def missing_section(results: Sequence[Result]) -> str:
    """What no part has measured yet, and the command that does."""
    lines = []
    for number, part in enumerate(PARTS, start=1):
        lacking = [f"{c.label} {', '.join(left)}" for c in part if (left := missing_modes(c, results))]
        lines += [f"- `make bench PART={number}`: {'; '.join(lacking)}"] if lacking else []
    return section("Not measured", "\n".join(lines) + "\n" if lines else "")


def ratios_section(table: Table) -> str:
    """(c) and (d) against (b) and (a)."""
    header = ("network", "against", "mode", "seconds", "seconds to within 5%", "trials", "latency when its time is up")
    remark = (
        "Seconds and trials are to the baseline's final latency, the baseline's over the mode's; `never`: it was not reached."
    )
    return section("Against the baselines", as_table(header, _ratio_rows(table)), remark)


def _ratio_rows(table: Table) -> Iterator[Row]:
    for baseline in ("b", "a"):
        for pair in table.pairs(baseline):
            for mode in ("c", "d"):
                if found := all_versus(table, pair, baseline, mode):
                    columns = zip(*((v.seconds, v.near, v.trials, v.latency) for v in found), strict=True)
                    yield pair, f"({baseline})", f"({mode})", *(in_words(Spread.of(c)) for c in columns)


def times_section(table: Table) -> str:
    """Trials, seconds and latencies of every mode."""
    header = ("network", "mode", "seeds", "trials", "tuning s", "search, build, run %", "untuned ms", "tuned ms", "checked ms")
    rows = [
        (pair, mode, len(results), *_measured(results))
        for pair in table.pairs()
        for mode in ("v1", *MODES)
        if (results := table.over(pair, mode))
    ]
    remark = (
        "Latencies are estimated: as the search saw them, and as measured again in turns with the untuned programs. The\n"
        "first is the best of many and flatters."
    )
    return section("What each mode took and found", as_table(header, rows), remark)


def _measured(results: Sequence[Result]) -> Iterator[str]:
    yield _over(results, lambda r: float(r.trials), "{:.0f}")
    yield _over(results, lambda r: r.tuning_s, "{:.1f}")
    yield "not told" if results[0].mode == "a" else ", ".join(_share(results, part) for part in ("search", "build", "run"))
    yield _over(results, lambda r: r.untuned_ms)
    yield _over(results, lambda r: r.final_ms)
    yield _over(results, lambda r: r.checked_ms)


def _share(results: Sequence[Result], part: str) -> str:
    return f"{statistics.median(100 * r.time_s[part] / r.tuning_s if r.tuning_s else 0 for r in results):.0f}"


def _over(results: Sequence[Result], pick: Callable[[Result], float | None], form: str = "{:.3g}") -> str:
    """Median and range over seeds."""
    values = [value for r in results if (value := pick(r)) is not None]
    if not values:
        return ""
    low, middle, high = (form.format(f(values)) for f in (min, statistics.median, max))
    return middle if low == high else f"{middle} ({low} to {high})"


def origins_section(table: Table) -> str:
    """Where the saved milliseconds of (d) and (e) came from."""
    rows = [
        (r.pair, f"({r.mode})", r.seed, _counts(r.counts), _shares(r.saved_ms), f"{speed_up(r):.1f}x")
        for pair in table.pairs()
        for mode in ("d", "e")
        for r in table.over(pair, mode)
    ]
    remark = (
        "(d): `exact` is the earlier version's record as it is; `diffused` was searched from its priors; `sibling` from\n"
        "another task of the same run; `searched` from nothing. (e): `carried` is a prior moved to the task's extents;\n"
        "`model` is what the cost model likes best where no prior fits. Speed-up: estimated, over untuned."
    )
    header = ("network", "mode", "seed", "tasks", "share of the saved time", "speed-up")
    return section("Exact hits and diffusion", as_table(header, rows), remark)


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {n}" for name, n in sorted(counts.items(), key=lambda item: -item[1]))


def _shares(saved_ms: Mapping[str, float]) -> str:
    total = sum(saved_ms.values())
    return ", ".join(f"{k} {100 * v / total:.1f}%" for k, v in sorted(saved_ms.items(), key=lambda item: -item[1]) if total)


def end_to_end_section(table: Table) -> str:
    """The networks as they run, beside others' runs of the same."""
    names = ("untuned", "tuned", "onnxruntime", "torch")
    rows = []
    for pair in table.pairs():
        if medians := library_medians(table, pair):
            figures = [f"{medians[name]:.3g}" if name in medians else "-" for name in names]
            rows.append((pair, f"({best_mode(table, pair)})", *figures, _by_mode(table, pair)))
    header = ("network", "mode", "untuned ms", "tuned ms", "onnxruntime ms", "PyTorch eager ms", "tuned by (a), (b), (e), ms")
    return section(
        "End to end",
        as_table(header, rows),
        "Medians, measured in turns in one process, a thread for each core; PyTorch on one thread where that is faster.",
    )


def _by_mode(table: Table, pair: str) -> str:
    runs = {mode: [r.end_to_end["tuned"].median_ms for r in table.over(pair, mode) if r.end_to_end] for mode in ("a", "b", "e")}
    return ", ".join(f"({mode}) {statistics.median(medians):.3g}" for mode, medians in runs.items() if medians)


def memory_section(table: Table) -> str:
    """The largest peak of each mode."""
    rows = []
    for pair in table.pairs():
        results = {mode: found for mode in MODES if (found := table.over(pair, mode))}
        peaks = [f"({m}) {max(r.peak_rss_bytes for r in found) / (1 << 30):.2f}" for m, found in results.items()]
        rows.append((pair, max((r.n_tasks for found in results.values() for r in found), default=0), ", ".join(peaks)))
    remark = (
        "Resident memory of the process and its children, added up: shared pages count in each. Checks and the end-to-end\n"
        "runs of onnxruntime and PyTorch in the same process are included."
    )
    return section("Peak memory", as_table(("network", "tasks", "GiB"), rows), remark)


def ablations_section(table: Table) -> str:
    """Ours with a part left out or replaced, against ours in the same sitting."""
    rows = []
    for pair in table.pairs():
        for variant, base in VARIANTS.items():
            both = [(table.get(pair, s, base), table.get(pair, s, variant)) for s in table.seeds(pair, base, variant)]
            found = [(full, changed) for full, changed in both if full and changed]
            if found:
                slower, worse = [_slower(*f) for f in found], [changed.final_ms / full.final_ms for full, changed in found]
                trials = ", ".join(f"{changed.trials} of {full.trials}" for full, changed in found)
                rows.append((pair, variant, base, trials, in_words(Spread.of(slower)), in_words(Spread.of(worse))))
    header = ("network", "", "against", "trials", "seconds to within 5% of the other's end", "final latency")
    remark = (
        "Ratios, above 1 where what was left out, or clustering by signature, helps. `never`: that latency was not reached."
    )
    return section("Ablations", as_table(header, rows), remark)


def _slower(full: Result, changed: Result) -> float:
    own, found = (seconds_to(r.curve, NEAR * full.final_ms) for r in (full, changed))
    return found / own if own and found else 0.0


def conditions_section(results: Sequence[Result]) -> str:
    """Machine, versions, seeds and dates, and what the runs remarked."""
    lines = [
        f"- {fact}: {_with_seeds([r for r in results if _facts(r) == fact])}" for fact in dict.fromkeys(map(_facts, results))
    ]
    split = [c.label for part in PARTS for c in part if not is_whole(c, results)]
    if split:
        lines.append(f"- modes of one comparison in more than one sitting: {', '.join(split)}")
    lines += [f"- remark of {r.pair} seed {r.seed} ({r.mode}): {note}" for r in results for note in r.notes]
    return section("Conditions", "\n".join(lines) + "\n" if lines else "")


_SCALE_GOALS = {("sqlite", 100_000): (5.0, None), ("postgresql", 1_000_000): (5.0, 20.0)}
"""Milliseconds of a lookup for each task, p50 and p99, by database and records."""


def scale_section(scales: Sequence[Scale]) -> str:
    """Lookups and publishes in large catalogs."""
    header = ("database", "records", "lookup p50 ms a task", "p99", "catalog and grading p50", "publish s", "queries", "read")
    rows = [
        (
            scale.database,
            f"{scale.n_records:,}",
            *(_held(value, goal) for value, goal in zip(_lookup_ms(scale), _scale_goals(scale), strict=True)),
            f"{percentile(scale.catalog_ms, 0.5):.2f}",
            f"{median(scale.publish_ms) / 1e3:.2f} (at most {max(scale.publish_ms) / 1e3:.2f})",
            scale.n_queries,
            f"{scale.n_read:.0f}",
        )
        for scale in scales
    ]
    remark = (
        "A lookup is that of a network of 80 tasks, half of them known, the others new to a cluster of 12 workloads with 10\n"
        "records each; its traces are read from local files. A publish is a whole run of 80 records, under 2 s wanted; beside\n"
        "PostgreSQL the traces go to an S3 server on the same machine. The goal stands in brackets.\n"
    )
    lines = [f"- {scale.database}, {scale.n_records:,}: {_scale_facts(scale)}" for scale in scales]
    return section("The registry's scale", as_table(header, rows), "\n".join([remark, *lines]))


def _lookup_ms(scale: Scale) -> tuple[float, float]:
    return percentile(scale.lookup_ms, 0.5), percentile(scale.lookup_ms, 0.99)


def _scale_goals(scale: Scale) -> tuple[float | None, float | None]:
    return _SCALE_GOALS.get(scale.key, (None, None))


def _held(value: float, goal: float | None) -> str:
    return f"{value:.2f}" if goal is None else f"{value:.2f} ({goal:.0f}: {'met' if value < goal else '**not met**'})"


def _scale_facts(scale: Scale) -> str:
    facts = scale.facts
    machine = f"{facts.get('cores')} cores of {facts.get('cpu')}, load before {facts.get('load')}"
    when = f"{facts.get('date', 'no date')}, revision {facts.get('revision', 'unknown')}"
    return f"{when}: {machine}; {len(scale.lookup_ms)} lookups"


def _facts(result: Result) -> str:
    facts = result.facts
    versions = ", ".join(f"{name} {version}" for name, version in sorted(facts.get("versions", {}).items()))
    cores = f"{facts.get('threads')} threads on {facts.get('cores')} cores of {facts.get('cpu')}"
    machine = f"{cores}, {facts.get('memory_gib')} GiB, {facts.get('system')}"
    when = f"{facts.get('date', 'no date')}, revision {facts.get('revision', 'unknown')}"
    return f"{when}: {machine}, Python {facts.get('python')}, {versions}"


def _with_seeds(results: Sequence[Result]) -> str:
    """Networks with their seeds."""
    seeds: dict[str, set[int]] = {}
    for result in results:
        seeds.setdefault(result.pair, set()).add(result.seed)
    return "; ".join(f"{pair}, seed {' and '.join(map(str, sorted(own)))}" for pair, own in seeds.items())
