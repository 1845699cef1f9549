"""What `catalog_scale` measured: plain values, a line of JSON each."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SCALES = Path(__file__).with_name("scale.jsonl")


@dataclass(frozen=True, slots=True)
class Scale:
    """A catalog of one size in one database. The lists are in the order of measurement.

    Attributes:
        lookup_ms: `Registry.lookup` of a whole network, traces included, for each task of it.
        catalog_ms: The same of the queries and the grading alone.
        n_queries: Of one lookup.
        n_read: Records read by a lookup, in the mean.
        publish_ms: Rows of a whole run.
        fill_s: Seconds to fill the catalog.
        facts: Machine, date, revision and load.
    """

    database: str
    n_records: int
    n_tasks: int
    lookup_ms: Sequence[float]
    catalog_ms: Sequence[float]
    n_queries: int
    n_read: float
    publish_ms: Sequence[float]
    fill_s: float = 0.0
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, int]:
        """What it is the result of."""
        return self.database, self.n_records

    def as_json(self) -> dict[str, Any]:
        """Plain JSON, milliseconds at four digits."""
        values = dataclasses.asdict(self)
        for name in ("lookup_ms", "catalog_ms", "publish_ms"):
            values[name] = [float(f"{value:.4g}") for value in values[name]]
        return {**values, "fill_s": round(self.fill_s, 1), "n_read": round(self.n_read, 1)}


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest of the values that is not below that share of them."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def median(values: Sequence[float]) -> float:
    """The middle one, or the mean of the two."""
    return statistics.median(values)


def read_scales(path: Path) -> list[Scale]:
    """All results of a file, the later of two of one catalog, small catalogs first; none when there is no file."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = [Scale(**json.loads(line)) for line in lines if line.strip()]
    return sorted({scale.key: scale for scale in found}.values(), key=lambda scale: (scale.n_records, scale.database))


def write_scales(path: Path, scales: Sequence[Scale]) -> None:
    """Put the results in the place of those of the same catalogs."""
    kept = {scale.key: scale for scale in (*read_scales(path), *scales)}
    lines = (json.dumps(scale.as_json(), separators=(",", ":")) for scale in kept.values())
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
