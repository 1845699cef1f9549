"""Cost-model snapshots as a folder of three plain files: booster.ubj, samples.npz and snapshot.json. No pickle, no archive."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from bcd_registry.errors import CostModelError
from bcd_registry.model import CostModelSnapshot, canonical_json

from .snapshot_bytes import MAX_ARRAY_BYTES, MAX_BOOSTER_BYTES

MAX_METADATA_BYTES = 1 << 20
"""Largest snapshot.json: a real one has some 500 bytes."""

_BOOSTER, _SAMPLES, _METADATA = "booster.ubj", "samples.npz", "snapshot.json"


def write_snapshot(snapshot: CostModelSnapshot, folder: Path) -> None:
    """Write the three files; the folder is made when it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _BOOSTER).write_bytes(snapshot.booster)
    (folder / _SAMPLES).write_bytes(snapshot.samples)
    values = {"target": snapshot.target, "created_at": snapshot.created_at, "metadata": dict(snapshot.metadata)}
    (folder / _METADATA).write_text(canonical_json(values))


def read_snapshot(folder: Path) -> CostModelSnapshot:
    """Read the three files.

    Raises:
        CostModelError: A file is missing or too large, or its JSON is broken. The booster and samples are verified when they
            are used.
    """
    try:
        metadata = _read(folder / _METADATA, MAX_METADATA_BYTES)
        booster, samples = _read(folder / _BOOSTER, MAX_BOOSTER_BYTES), _read(folder / _SAMPLES, MAX_ARRAY_BYTES)
        return _snapshot(json.loads(metadata, parse_constant=_refuse_constant), booster, samples)
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise CostModelError(f"no cost model can be read from {folder}") from error


def _read(path: Path, most: int) -> bytes:
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"{path} has more than {most} bytes")
    return data


def _snapshot(values: Any, booster: bytes, samples: bytes) -> CostModelSnapshot:
    target, metadata, created_at = values["target"], values["metadata"], float(values["created_at"])
    if not isinstance(target, str) or not isinstance(metadata, dict) or not math.isfinite(created_at):
        raise TypeError("the target is no text, the metadata no object or the time no number")
    return CostModelSnapshot(target, booster, samples, metadata, created_at)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")
