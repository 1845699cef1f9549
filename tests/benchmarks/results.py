"""What one mode of one comparison came to: plain values, a line of JSON each, appended as they come."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bcd_registry.model import NetworkSpec

Point = tuple[float, int, float]
"""Seconds of tuning, trials, and the weighted sum of the tasks' best latencies at that moment, milliseconds."""

DIGITS = 6


@dataclass(frozen=True, slots=True)
class Job:
    """What a mode is to do.

    Attributes:
        home: The registry that v1 fills and that what follows starts from; each of those works on a copy.
        light_share: Share of the trials for the tasks outside the 90%.
        torch: Name of the model that PyTorch runs eagerly beside it; empty for none.
        onnx: File that onnxruntime runs beside it when the network itself is not ONNX; empty for none.
        small: Make the stock search small, for tests.
    """

    pair: str
    seed: int
    second: NetworkSpec
    first: NetworkSpec | None
    home: str
    light_share: float = 0.25
    torch: str = ""
    onnx: str = ""
    small: bool = False

    def as_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Job:
        """What `as_json` gave."""
        second, first = _spec(values["second"]), values["first"]
        return cls(**{**values, "second": second, "first": None if first is None else _spec(first)})


def _spec(values: Mapping[str, Any]) -> NetworkSpec:
    return NetworkSpec(**{**values, "shapes": {name: tuple(shape) for name, shape in values["shapes"].items()}})


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs of a whole network: median, 10th and 90th percentile, milliseconds."""

    median_ms: float
    low_ms: float
    high_ms: float


@dataclass(frozen=True, slots=True)
class Result:
    """One mode of one comparison.

    Attributes:
        curve: Its first point is the untuned network.
        checked_untuned_ms: Weighted sum of the untuned tasks' latencies, measured in turns with the winners.
        checked_ms: The same of the winners. `curve` has the latencies that the search saw, which flatter: the best of many.
        equal: The tuned network's outputs equal the untuned one's.
        end_to_end: By who ran it: untuned, tuned, onnxruntime, torch.
        time_s: Seconds of tuning by what they went into.
        wall_s: Seconds of the whole mode: import, checks and end-to-end runs included.
        counts: Tasks by grade, or by what a guess was made from.
        saved_ms: Weighted milliseconds that the tasks lost, by where their schedules came from.
        n_wrong: Winners whose output was wrong, and which were not used.
        peak_rss_bytes: Largest sum of resident memory over the process and its children; shared pages count in each.
        facts: Versions, machine, revision, date and sitting.
    """

    pair: str
    seed: int
    mode: str
    trials: int
    depth: int
    n_tasks: int
    curve: tuple[Point, ...]
    checked_untuned_ms: float | None
    checked_ms: float | None
    equal: bool
    end_to_end: Mapping[str, Runs]
    time_s: Mapping[str, float]
    wall_s: float = 0.0
    counts: Mapping[str, int] = field(default_factory=dict)
    saved_ms: Mapping[str, float] = field(default_factory=dict)
    n_wrong: int = 0
    peak_rss_bytes: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, int, str]:
        """What it is the result of."""
        return self.pair, self.seed, self.mode

    @property
    def untuned_ms(self) -> float:
        """Estimated latency before any trial."""
        return self.curve[0][2]

    @property
    def final_ms(self) -> float:
        """Estimated latency at the end, as the search saw it."""
        return self.curve[-1][2]

    @property
    def tuning_s(self) -> float:
        """Seconds of tuning in all."""
        return sum(self.time_s.values())

    def as_json(self) -> dict[str, Any]:
        """Plain JSON, floats at six significant digits."""
        short: dict[str, Any] = _rounded(dataclasses.asdict(self))
        return short

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Result:
        """What `as_json` gave."""
        curve = tuple((float(s), int(n), float(ms)) for s, n, ms in values["curve"])
        runs = {name: Runs(**run) for name, run in values["end_to_end"].items()}
        return cls(**{**values, "curve": curve, "end_to_end": runs, "notes": tuple(values["notes"])})


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, Sequence) and not isinstance(value, str) else value


def read_results(path: Path) -> list[Result]:
    """All results of a file, the later of two with one key; none when there is no file."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return latest(Result.from_json(json.loads(line)) for line in lines if line.strip())


def latest(results: Iterable[Result]) -> list[Result]:
    """The last result of each key, in the order of first appearance."""
    return list({result.key: result for result in results}.values())


def append_result(path: Path, result: Result) -> None:
    """Add one line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(result.as_json(), separators=(",", ":")) + "\n")
