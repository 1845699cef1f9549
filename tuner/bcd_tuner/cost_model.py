"""DiffusionCostModel: the latency predictor as a MetaSchedule PyCostModel, shared by all tasks of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.cost_model import PyCostModel
from tvm.s_tir.meta_schedule.feature_extractor import PerStoreFeature

from bcd_registry.errors import CostModelError

from .latency_model import LatencyModel
from .search import latency_of

STORE_WIDTH = 164
"""Width of TVM's PerStoreFeature with its default arguments."""

FEATURE_WIDTH = 2 * STORE_WIDTH + 1


def candidate_features(context: Any, candidates: Sequence[Any]) -> NDArray[np.float32]:
    """One row for each candidate: float32, (n_candidates, FEATURE_WIDTH).

    A candidate has a row of features for each buffer store. Its own row is their maximum over the stores, the store with the
    most arithmetic, and the number of stores.
    """
    extractor = PerStoreFeature()
    rows = np.zeros((len(candidates), FEATURE_WIDTH), dtype=np.float32)
    for row, stores in zip(rows, extractor.extract_from(context, list(candidates)), strict=True):
        table = stores.numpy()
        if not len(table):
            continue
        row[:STORE_WIDTH] = table.max(axis=0)
        row[STORE_WIDTH:-1] = table[table[:, :16].sum(axis=1).argmax()]
        row[-1] = len(table)
    return rows


Names = tuple[str, str]


@derived_object
class DiffusionCostModel(PyCostModel):  # type: ignore[misc]
    """MetaSchedule's cost model over `LatencyModel`.

    Args:
        model: The predictor; one model serves all tasks.
        names_of: Workload key and cluster signature of a task's IRModule.
    """

    def __init__(self, model: LatencyModel, names_of: Callable[[Any], Names]) -> None:
        super().__init__()
        self.model = model
        self._names_of = names_of

    def load(self, path: str) -> None:
        """Start from the booster and samples in a folder that `save` wrote. Nothing is unpickled."""
        from .snapshots import read_snapshot

        self.model.pretrain(read_snapshot(Path(path)), FEATURE_WIDTH)

    def save(self, path: str) -> None:
        """Write booster, samples and metadata into a folder.

        Raises:
            CostModelError: Too little was measured to train anything.
        """
        from .snapshots import write_snapshot

        snapshot = self.model.snapshot("", FEATURE_WIDTH)
        if snapshot is None:
            raise CostModelError("too few measurements to save a cost model")
        write_snapshot(snapshot, Path(path))

    def update(self, context: Any, candidates: Any, results: Any) -> None:
        """Learn from measured candidates."""
        workload, cluster = self._names_of(context.mod)
        features = candidate_features(context, candidates)
        self.model.update(features, [latency_of(result) for result in results], workload, cluster)

    def predict(self, context: Any, candidates: Any) -> NDArray[np.float64]:
        """Scores, float64 (n_candidates,), higher is faster; zeros before anything was learnt."""
        scores = self.model.predict(candidate_features(context, candidates), self._names_of(context.mod)[1])
        return np.zeros(len(candidates)) if scores is None else scores
