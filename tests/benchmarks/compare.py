"""Results against each other: times, trials and latencies as ratios, and the goals that they meet or miss. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from .networks import CLAIMS, PAIRS
from .results import Point, Result

ALL = tuple(PAIRS)
STOCK = tuple(pair.name for pair in PAIRS.values() if pair.stock)

LARGEST = "det"
"""The network with the most tasks, for the memory."""

_MEMORY_GIB = 3.0

NEAR = 1.05
"""A search ends by luck as well: the time to this much above its end is a steadier figure, given beside the goals'."""

Comparison = tuple[str, int]
"""Network and seed."""


@dataclass(frozen=True, slots=True)
class Versus:
    """A mode against a baseline in one comparison; every ratio says how much better the mode is.

    Attributes:
        seconds: Baseline's seconds to its own final latency over the mode's to the same; 0.0 when the mode never reached it.
        trials: The same in trials.
        near: As `seconds`, to 1.05 times that latency.
        latency: Baseline's latency over the mode's when the baseline's time was up.
    """

    pair: str
    seed: int
    mode: str
    seconds: float
    trials: float
    near: float
    latency: float


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over seeds."""

    median: float
    low: float
    high: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        return cls(statistics.median(values), min(values), max(values), len(values))


class Table:
    """All results, by comparison and mode."""

    def __init__(self, results: Iterable[Result]) -> None:
        self._by_key = {result.key: result for result in results}

    def get(self, pair: str, seed: int, mode: str) -> Result | None:
        """The result, if it was measured."""
        return self._by_key.get((pair, seed, mode))

    def seeds(self, pair: str, *modes: str) -> list[int]:
        """Seeds for which all of the modes were measured."""
        seeds = sorted({seed for name, seed, _ in self._by_key if name == pair})
        return [seed for seed in seeds if all((pair, seed, mode) in self._by_key for mode in modes)]

    def pairs(self, *modes: str) -> list[str]:
        """Networks with at least one such seed, in the order of the results."""
        return [pair for pair in dict.fromkeys(name for name, _, _ in self._by_key) if self.seeds(pair, *modes)]

    def over(self, pair: str, mode: str) -> list[Result]:
        """The results of a mode, by seed."""
        return [result for seed in self.seeds(pair, mode) if (result := self.get(pair, seed, mode))]


def versus(baseline: Result, result: Result) -> Versus:
    """Compare two modes of one comparison."""
    target = baseline.final_ms if baseline.mode != "a" else min(baseline.final_ms, baseline.checked_ms or math.inf)
    own = baseline.final_ms
    end_s = max(baseline.tuning_s, baseline.curve[-1][0])
    return Versus(
        result.pair,
        result.seed,
        result.mode,
        seconds=_ratio(seconds_to(baseline.curve, own), seconds_to(result.curve, target)),
        trials=_ratio(trials_to(baseline.curve, own), trials_to(result.curve, target)),
        near=_ratio(seconds_to(baseline.curve, NEAR * own), seconds_to(result.curve, NEAR * target)),
        latency=baseline.final_ms / latency_at(result.curve, end_s),
    )


def seconds_to(curve: Sequence[Point], target_ms: float) -> float | None:
    """Seconds until the estimate was at most the target; None when it never was."""
    return next((seconds for seconds, _, ms in curve if ms <= target_ms), None)


def trials_to(curve: Sequence[Point], target_ms: float) -> float | None:
    """The same in trials."""
    return next((float(trials) for _, trials, ms in curve if ms <= target_ms), None)


def latency_at(curve: Sequence[Point], seconds: float) -> float:
    """The estimate at a moment; a search that has ended keeps its last."""
    return next((ms for s, _, ms in reversed(curve) if s <= seconds), curve[0][2])


def _ratio(baseline: float | None, mode: float | None) -> float:
    if baseline is None or mode is None:
        return 0.0
    return baseline / mode if mode > 0 else math.inf


def all_versus(table: Table, pair: str, baseline: str, mode: str) -> list[Versus]:
    """Every seed of a network for which both were measured."""
    both = ((table.get(pair, s, baseline), table.get(pair, s, mode)) for s in table.seeds(pair, baseline, mode))
    return [versus(b, m) for b, m in both if b and m]


def geometric_mean(values: Sequence[float]) -> float:
    """Zero when one of them is zero: what was never reached has no mean."""
    return 0.0 if min(values) <= 0 else math.exp(statistics.fmean(math.log(v) for v in values))


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal and what was found.

    Attributes:
        figure: For people; empty when nothing was measured.
        missing: Networks whose part is not measured; the goal is open while there is one.
    """

    text: str
    needed: str
    figure: str
    met: bool | None
    missing: tuple[str, ...] = ()


def goals(table: Table) -> list[Goal]:
    """Every goal, in order, measured or not."""
    return [
        _ratio_goal(table, "b", "c", lambda v: v.seconds, 5.0, "seconds to (b)'s final latency, (c) cold", CLAIMS),
        _ratio_goal(table, "b", "d", lambda v: v.seconds, 10.0, "seconds to (b)'s final latency, (d) warm", CLAIMS),
        _ratio_goal(table, "a", "d", lambda v: v.seconds, 30.0, "seconds to (a)'s final latency, (d) warm", STOCK),
        _ratio_goal(table, "b", "c", lambda v: v.trials, 2.0, "trials to (b)'s final latency, (c) cold", CLAIMS),
        _ratio_goal(table, "b", "d", lambda v: v.trials, 4.0, "trials to (b)'s final latency, (d) warm", CLAIMS),
        _ratio_goal(table, "b", "c", lambda v: v.latency, 1.13, "latency when (b)'s time is up, (c) cold", CLAIMS),
        _ratio_goal(table, "b", "d", lambda v: v.latency, 1.13, "latency when (b)'s time is up, (d) warm", CLAIMS),
        _never_worse(table),
        _guess_goal(table),
        _library_goal(table),
        _memory_goal(table),
    ]


def _ratio_goal(
    table: Table,
    baseline: str,
    mode: str,
    pick: Callable[[Versus], float],
    least: float,
    text: str,
    pairs: Sequence[str],
) -> Goal:
    """Median over seeds for each network, geometric mean over networks."""
    found = {pair: [pick(v) for v in all_versus(table, pair, baseline, mode)] for pair in pairs}
    return _mean_goal({pair: values for pair, values in found.items() if values}, least, text, pairs)


def _mean_goal(found: Mapping[str, Sequence[float]], least: float, text: str, pairs: Sequence[str]) -> Goal:
    missing = tuple(pair for pair in pairs if pair not in found)
    needed = f"{least:g}x" if least >= 1 else f"{least:g}"
    if not found:
        return Goal(text, needed, "", None, missing)
    spreads = {pair: Spread.of(values) for pair, values in found.items()}
    mean = geometric_mean([spread.median for spread in spreads.values()])
    parts = "; ".join(f"{pair} {in_words(spread)}" for pair, spread in spreads.items())
    figure = f"{mean:.2f} ({parts})" if mean else f"no mean: {parts}"
    return Goal(text, needed, figure, None if missing else mean >= least, missing)


def in_words(spread: Spread) -> str:
    """Median and range, with what was never reached in words."""

    def word(value: float) -> str:
        return "never" if value <= 0 else f"{value:.2f}"

    return word(spread.median) if spread.n == 1 else f"{word(spread.median)}, {word(spread.low)} to {word(spread.high)}"


def _never_worse(table: Table) -> Goal:
    """No network on which the median of (c) or (d) is slower than the slowest of (b)'s seeds."""
    worse, seen = [], []
    for pair in table.pairs("b"):
        limit = max(r.final_ms for r in table.over(pair, "b"))
        for mode in ("c", "d"):
            values = [r.final_ms / v.latency for v in all_versus(table, pair, "b", mode) if (r := table.get(pair, v.seed, "b"))]
            if values:
                seen.append(pair)
                if statistics.median(values) > limit:
                    worse.append(f"({mode}) on {pair}, {statistics.median(values):.3g} ms against {limit:.3g} ms")
    missing = tuple(pair for pair in ALL if pair not in seen)
    figure = "; ".join(worse) or (f"worse on none of {len(set(seen))}" if seen else "")
    text = "latency when (b)'s time is up: networks on which (c) or (d) is worse than the slowest seed of (b)"
    return Goal(text, "none", figure, False if worse else None if missing or not seen else True, missing)


def _guess_goal(table: Table) -> Goal:
    """Speed-up of (e) over untuned, as a share of (b)'s."""
    found = {}
    for pair in CLAIMS:
        both = [(table.get(pair, s, "e"), table.get(pair, s, "b")) for s in table.seeds(pair, "e", "b")]
        shares = [speed_up(e) / speed_up(b) for e, b in both if e and b]
        if shares:
            found[pair] = shares
    return _mean_goal(found, 0.7, "speed-up of (e), zero trials, as a share of (b)'s", CLAIMS)


def speed_up(result: Result) -> float:
    """Over the untuned network, both estimated from checked latencies where there are some."""
    return (result.checked_untuned_ms or result.untuned_ms) / (result.checked_ms or result.final_ms)


def best_mode(table: Table, pair: str) -> str | None:
    """(d) where there is an earlier version, else (c)."""
    return next((mode for mode in ("d", "c") if table.seeds(pair, mode)), None)


def library_medians(table: Table, pair: str) -> dict[str, float]:
    """End-to-end medians over seeds, milliseconds, by who ran it, in the runs of the best mode."""
    mode = best_mode(table, pair)
    results = table.over(pair, mode) if mode else []
    names = dict.fromkeys(name for result in results for name in result.end_to_end)
    return {n: statistics.median(r.end_to_end[n].median_ms for r in results if n in r.end_to_end) for n in names}


def _library_goal(table: Table) -> Goal:
    faster: list[str] = []
    slower: list[str] = []
    for pair in ALL:
        medians = library_medians(table, pair)
        others = [medians[name] for name in ("onnxruntime", "torch") if name in medians]
        if "tuned" in medians and others:
            (faster if medians["tuned"] < min(others) else slower).append(pair)
    missing = tuple(pair for pair in ALL if pair not in (*faster, *slower))
    figure = f"{len(faster)} of {len(faster) + len(slower)}: {', '.join(faster) or 'none'}" if faster or slower else ""
    met = None if missing or not figure else len(faster) >= 2 / 3 * len(ALL)
    text = "networks that are faster end to end than onnxruntime and PyTorch eager, those that can be run, 2 threads"
    return Goal(text, "two thirds", figure, met, missing)


def _memory_goal(table: Table) -> Goal:
    """The largest peak of (c) and (d) on the network with the most tasks."""
    pairs = {pair: [r for mode in ("c", "d") for r in table.over(pair, mode)] for pair in table.pairs("c")}
    text, needed = "peak memory of the whole process tree", f"under {_MEMORY_GIB:g} GiB on 80 tasks"
    if not pairs:
        return Goal(text, needed, "", None, (LARGEST,))
    largest = max(pairs, key=lambda pair: pairs[pair][0].n_tasks)
    peak = max(r.peak_rss_bytes for r in pairs[largest]) / (1 << 30)
    figure = f"{peak:.2f} GiB on {largest}, {pairs[largest][0].n_tasks} tasks"
    known = LARGEST in pairs
    return Goal(text, needed, figure, peak < _MEMORY_GIB if known else None, () if known else (LARGEST,))
