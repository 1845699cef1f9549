"""Cost-model snapshots as a folder of three plain files: booster.ubj, samples.npz and snapshot.json. No pickle, no archive."""

from __future__ import annotations

import json
from pathlib import Path

from bcd_registry.errors import CostModelError
from bcd_registry.model import CostModelSnapshot, canonical_json

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
        CostModelError: A file is missing or its JSON is broken. The booster and samples are verified when they are used.
    """
    try:
        values = json.loads((folder / _METADATA).read_text())
        booster, samples = (folder / _BOOSTER).read_bytes(), (folder / _SAMPLES).read_bytes()
        return CostModelSnapshot(values["target"], booster, samples, dict(values["metadata"]), values["created_at"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CostModelError(f"no cost model can be read from {folder}") from error
