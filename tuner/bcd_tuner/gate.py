"""Whether a version may go out: both are compiled and timed in turns on this machine, and each rule says what it measured."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bcd_registry.errors import ConfigError, NotFound
from bcd_registry.lock import Lock
from bcd_registry.model import Json, NetworkSpec
from bcd_registry.registry import Registry

from .bench import Timing, timings_json
from .compile import Call, compile_network, time_in_turns
from .loader import load_compiled
from .networks import make_inputs
from .published import Coverage, PublishedNetwork, Say, read_published
from .scratch import measuring_lock

SCHEMA = 1
"""Version of the JSON that `gate --json` prints."""

_RESAMPLES = 2000
_CONFIDENCE = 0.95
_TARGET_S = 2.0
_TIMINGS = 3
"""Timings in a row that must show a regression: another process can disturb any one of them."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What is asked of the new version.

    Attributes:
        max_regression: Share by which it may be slower: 0.03 for 3%.
        min_coverage: Share of its estimated untuned time that must be in tasks with a published schedule.
        max_untuned: Tasks that may be without one; None judges only the share.
    """

    max_regression: float = 0.03
    min_coverage: float = 0.95
    max_untuned: int | None = None


@dataclass(frozen=True, slots=True)
class Baseline:
    """What the new version is compared with: a network, one with a lock, or a compiled folder.

    Attributes:
        label: As the user named it.
    """

    label: str
    spec: NetworkSpec | None = None
    lock: Lock | None = None
    folder: Path | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule and what became of it.

    Attributes:
        name: `regression`, `coverage` or `untuned`.
        reason: What was measured and what is allowed, one line.
    """

    name: str
    passed: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Ratio:
    """Latency of the new version over the old one's, with an interval of 95% confidence."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class GateReport:
    """What the gate says.

    Attributes:
        against: What it was compared with, as the user named it.
        timings: `new` and `old`, the last timing of both.
        threads: Threads that both ran on.
        notes: Warnings for people, one line each.
    """

    network: str
    version: str
    against: str
    rules: tuple[Rule, ...]
    ratio: Ratio
    timings: Mapping[str, Timing]
    coverage: Coverage
    threads: int
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every rule holds."""
        return all(rule.passed for rule in self.rules)

    def as_json(self) -> dict[str, Json]:
        """The object that `gate --json` prints."""
        return {
            "schema": SCHEMA,
            "passed": self.passed,
            "network": self.network,
            "version": self.version,
            "against": self.against,
            "rules": [{"name": r.name, "passed": r.passed, "reason": r.reason} for r in self.rules],
            "ratio": {"value": self.ratio.value, "low": self.ratio.low, "high": self.ratio.high},
            "latency_ms": timings_json(self.timings),
            "coverage": self.coverage.as_json(),
            "threads": self.threads,
            "notes": list(self.notes),
        }


def run_gate(
    spec: NetworkSpec,
    baseline: Baseline,
    registry: Registry,
    limits: Limits,
    say: Say,
    *,
    repeats: int | None = None,
    seed: int = 0,
) -> GateReport:
    """Compile and time the new version and what it is compared with, in turns, and judge.

    Args:
        repeats: Runs of each in a timing; by default as many as fit into two seconds.
        seed: Of the inputs and of the bootstrap.

    Raises:
        ConfigError: The target or a shape is wrong, or the folder is none or cannot run here.
        NetworkError: A network cannot be read.
        NotFound: Nothing is published for the network to compare with.
        RegistryError: The registry cannot be used.
        FrozenMismatch: What the lock names cannot be used, or a file of the folder was changed.
        MeasureError: One does not compile.
    """
    new = read_published(spec, registry, say)
    old, threads, notes = _baseline_call(baseline, registry, say, seed)
    with measuring_lock():
        say("compile", f"compiling {spec.label}")
        call = compile_network(new.lowered, new.schedules).bind(make_inputs(new.network, seed))
        say("time", "timing both in turns")
        new_s, old_s = time_until_sure(call, old, limits.max_regression, repeats=repeats, seed=seed)
    ratio = ratio_of(new_s, old_s, seed)
    if threads != new.threads:
        notes = (*notes, f"{baseline.label} is made for {threads} threads, both ran on {new.threads}")
    return GateReport(
        network=spec.name,
        version=spec.version,
        against=baseline.label,
        rules=judge(limits, ratio, new_s, old_s, new.coverage),
        ratio=ratio,
        timings={"new": Timing.of(new_s), "old": Timing.of(old_s)},
        coverage=new.coverage,
        threads=new.threads,
        notes=notes,
    )


def time_until_sure(
    new: Call, old: Call, max_regression: float, *, repeats: int | None = None, seed: int = 0
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Seconds of each run of both: of the first timing without a regression, or of the last of three that all show one."""
    for _ in range(_TIMINGS):
        new_s, old_s = time_in_turns([new, old], _TARGET_S, repeats)
        if ratio_of(new_s, old_s, seed).low <= 1.0 + max_regression:
            break
    return new_s, old_s


def ratio_of(new_s: Sequence[float], old_s: Sequence[float], seed: int) -> Ratio:
    """Ratio of the medians, with a percentile interval of a bootstrap over turns.

    A turn has one run of each: what disturbed both stays together in a resample.
    """
    new, old = np.asarray(new_s), np.asarray(old_s)
    chosen = np.random.default_rng(seed).integers(0, len(new), (_RESAMPLES, len(new)))
    ratios = np.median(new[chosen], axis=1) / np.median(old[chosen], axis=1)
    low, high = np.percentile(ratios, [50 * (1 - _CONFIDENCE), 50 * (1 + _CONFIDENCE)])
    return Ratio(float(np.median(new) / np.median(old)), float(low), float(high))


def judge(limits: Limits, ratio: Ratio, new_s: Sequence[float], old_s: Sequence[float], coverage: Coverage) -> tuple[Rule, ...]:
    """Each rule with what was measured. A regression counts when the whole interval is beyond what is allowed."""
    rules = [_judge_regression(limits.max_regression, ratio, new_s, old_s), _judge_coverage(limits.min_coverage, coverage)]
    if limits.max_untuned is not None:
        left = coverage.n_untuned
        reason = f"{left} of {coverage.n_tasks} tasks have no published schedule, {limits.max_untuned} allowed"
        rules.append(Rule("untuned", left <= limits.max_untuned, reason))
    return tuple(rules)


def _judge_regression(allowed: float, ratio: Ratio, new_s: Sequence[float], old_s: Sequence[float]) -> Rule:
    limit = 1.0 + allowed
    measured = (
        f"{statistics.median(new_s) * 1e3:.3g} ms against {statistics.median(old_s) * 1e3:.3g} ms: {ratio.value:.3f} times, "
        f"95% interval {ratio.low:.3f} to {ratio.high:.3f}, {limit:.3f} allowed"
    )
    if ratio.low > limit:
        return Rule("regression", passed=False, reason=f"slower: {measured}")
    verdict = "not slower" if ratio.high <= limit else "no regression seen, the noise may hide one"
    return Rule("regression", passed=True, reason=f"{verdict}: {measured}")


def _judge_coverage(wanted: float, coverage: Coverage) -> Rule:
    reason = (
        f"{100 * coverage.of_time:.2f}% of the estimated untuned time is in tasks with a published schedule "
        f"({coverage.n_exact} of {coverage.n_tasks} tasks), {100 * wanted:g}% wanted"
    )
    return Rule("coverage", coverage.of_time >= wanted, reason)


def _baseline_call(baseline: Baseline, registry: Registry, say: Say, seed: int) -> tuple[Call, int, tuple[str, ...]]:
    """A run of what is compared with, the threads that it is made for, and what is to be said of it."""
    if baseline.folder is not None:
        say("load", f"verifying and loading {baseline.folder}")
        loaded = load_compiled(baseline.folder)
        return loaded.bind(loaded.make_inputs(seed)), int(loaded.manifest["threads"]), ()
    if baseline.spec is None:
        raise ConfigError(f"nothing to compare with: {baseline.label}", hint="give a network, a lock or a compiled folder")
    old = read_published(baseline.spec, registry, say, lock=baseline.lock)
    _require_tuned(old, baseline)
    with measuring_lock():
        say("compile", f"compiling {baseline.label}")
        call = compile_network(old.lowered, old.schedules).bind(make_inputs(old.network, seed))
    left = old.coverage.n_untuned
    notes = (f"{left} of {len(old.planned)} tasks of {baseline.label} have no published schedule here",) if left else ()
    return call, old.threads, notes


def _require_tuned(old: PublishedNetwork, baseline: Baseline) -> None:
    """An untuned version is no measure: anything tuned would pass.

    Raises:
        NotFound: Nothing is published for it here.
    """
    if not old.coverage.n_exact:
        label = old.spec.label
        raise NotFound(
            f"nothing to compare with: the registry has no schedule of {baseline.label} for this machine",
            hint=f"`bcd-registry tune --model {label}` first, or give a lock or a folder",
        )
