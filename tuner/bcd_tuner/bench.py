"""A network timed end to end: tuned, untuned and in onnxruntime, in turns."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bcd_registry.errors import ConfigError
from bcd_registry.model import Json, NetworkSpec
from bcd_registry.registry import Registry

from .compile import Call, compile_both, compile_network, spread, time_in_turns
from .loader import load_compiled
from .networks import ImportedNetwork, make_inputs, onnxruntime_call
from .published import PublishedNetwork, Say, read_published
from .scratch import measuring_lock

SCHEMA = 1
"""Version of the JSON that `bench --json` prints."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The runs of one program, milliseconds.

    Attributes:
        p10: 10th percentile, as `p90` is the 90th.
    """

    median: float
    p10: float
    p90: float
    runs: int

    @classmethod
    def of(cls, runs_s: Sequence[float]) -> Timing:
        """From the seconds of each run."""
        low, high = spread(runs_s)
        return cls(statistics.median(runs_s) * 1e3, low * 1e3, high * 1e3, len(runs_s))


@dataclass(frozen=True, slots=True)
class BenchReport:
    """What was measured.

    Attributes:
        threads: Threads used by all of them.
        timings: By program: `tuned`, and `untuned` and `onnxruntime` where they were timed.
        notes: Warnings for people, one line each.
    """

    network: str
    version: str
    threads: int
    timings: Mapping[str, Timing]
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Json]:
        """The object that `bench --json` prints."""
        return {
            "schema": SCHEMA,
            "network": self.network,
            "version": self.version,
            "threads": self.threads,
            "latency_ms": timings_json(self.timings),
            "notes": list(self.notes),
        }


def timings_json(timings: Mapping[str, Timing]) -> dict[str, Json]:
    """Plain JSON by program."""
    return {name: {"median": t.median, "p10": t.p10, "p90": t.p90, "runs": t.runs} for name, t in timings.items()}


def bench_published(
    spec: NetworkSpec, registry: Registry, say: Say, *, untuned: bool = True, repeats: int | None = None, seed: int = 0
) -> BenchReport:
    """Compile a network with what is published and time it.

    Args:
        untuned: Time the untuned network and onnxruntime beside it.
        repeats: Runs of each; by default as many as fit into a second.

    Raises:
        ConfigError: The target or a shape is wrong.
        NetworkError: The network cannot be read.
        RegistryError: The registry cannot be used.
        MeasureError: It does not compile.
    """
    published = read_published(spec, registry, say)
    with measuring_lock():
        say("compile", "compiling the network")
        inputs = make_inputs(published.network, seed)
        calls: dict[str, Call] = {}
        if untuned:
            plain, tuned = compile_both(published.lowered, published.schedules)
            calls = {"tuned": tuned.bind(inputs), "untuned": plain.bind(inputs)}
            calls |= _onnxruntime(published.network, published.threads, seed)
        else:
            calls = {"tuned": compile_network(published.lowered, published.schedules).bind(inputs)}
        say("time", "timing")
        timings = time_programs(calls, repeats)
    return BenchReport(spec.name, spec.version, published.threads, timings, tuple(coverage_notes(published)))


def bench_compiled(
    folder: Path,
    say: Say,
    *,
    against: NetworkSpec | None = None,
    registry: Registry | None = None,
    repeats: int | None = None,
    seed: int = 0,
) -> BenchReport:
    """Time a compiled folder.

    Args:
        against: The network that it was compiled from, to time it untuned and in onnxruntime as well.
        registry: Only needed with `against`.

    Raises:
        ConfigError: It is no compiled folder, is of another network, or cannot run here.
        FrozenMismatch: A file of it is missing or was changed.
    """
    say("load", f"verifying and loading {folder}")
    loaded = load_compiled(folder)
    notes = [] if against else ["the untuned network is not in the folder: --model times it as well"]
    calls: dict[str, Call] = {"tuned": loaded.bind(loaded.make_inputs(seed))}
    source = read_published(against, registry, say) if against and registry else None
    if source is not None and source.network.digest != loaded.manifest.get("digest"):
        raise ConfigError(
            f"{folder} was not compiled from {against.label if against else ''}", hint="give the --model it is of"
        )
    with measuring_lock():
        if source is not None:
            say("compile", "compiling the untuned network")
            calls["untuned"] = compile_network(source.lowered, {}).bind(make_inputs(source.network, seed))
            calls |= _onnxruntime(source.network, loaded.threads, seed)
        say("time", "timing")
        timings = time_programs(calls, repeats)
    name, version = str(loaded.manifest.get("network")), str(loaded.manifest.get("version"))
    return BenchReport(name, version, loaded.threads, timings, tuple(notes))


def time_programs(calls: Mapping[str, Call], repeats: int | None = None) -> dict[str, Timing]:
    """Each program's runs, timed in turns."""
    times = time_in_turns(list(calls.values()), turns=repeats)
    return {name: Timing.of(runs) for name, runs in zip(calls, times, strict=True)}


def coverage_notes(published: PublishedNetwork) -> list[str]:
    """What to say of tasks that stay untuned."""
    left = published.coverage.n_untuned
    if not left:
        return []
    if left == len(published.planned):
        return ["nothing is published for this network and machine: what is called tuned is the untuned network"]
    return [f"{left} of {len(published.planned)} tasks have no published schedule here, and stay untuned"]


def _onnxruntime(network: ImportedNetwork, threads: int, seed: int) -> dict[str, Call]:
    call = onnxruntime_call(network, make_inputs(network, seed), threads)
    return {"onnxruntime": call} if call else {}
