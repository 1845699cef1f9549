"""The latency predictor: gradient-boosted trees over candidate features, pre-trained and fine-tuned by cluster.

xgboost only; no TVM. Labels are relative throughputs: the best latency of the workload over the candidate's, in [0, 1].
"""

from __future__ import annotations

import io
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xgboost
from numpy.typing import NDArray

from bcd_registry.errors import CostModelError
from bcd_registry.model import CostModelSnapshot, digest_of

from .snapshot_bytes import check_booster, read_arrays

Floats = NDArray[np.float32]

EXTRACTOR = "per-store-feature/max+main+count/1"
"""Names how a candidate becomes one row of features; a snapshot of another extractor is a miss."""

_MIN_SAMPLES = 16
_MIN_GROUP_SAMPLES = 8
_BASE_ROUNDS = 50
_FINE_ROUNDS = 12
_MAX_SAMPLES = 20_000
_GROWTH = 1.35
# Small trees and one thread: on a few thousand samples more threads wait for each other longer than they work.
_PARAMS: Mapping[str, Any] = {
    "objective": "reg:squarederror",
    "tree_method": "hist",
    "max_depth": 5,
    "eta": 0.2,
    "min_child_weight": 1.0,
    "subsample": 0.9,
    "colsample_bytree": 0.5,
    "max_bin": 16,
    "seed_per_iteration": True,  # else a tree depends on what else was trained in the process
    "nthread": 1,
    "verbosity": 0,
}


@dataclass(slots=True)
class Samples:
    """Measured candidates of many workloads.

    Attributes:
        features: float32, (n, n_features).
        latencies_s: float64, (n,); infinite for a candidate that failed.
        workloads: Name of the workload of each, (n,); labels are relative within one.
        clusters: Name of the cluster of each, (n,); fine-tuning is by cluster.
    """

    features: list[Floats] = field(default_factory=list)
    latencies_s: list[float] = field(default_factory=list)
    workloads: list[str] = field(default_factory=list)
    clusters: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.latencies_s)

    def add(self, features: Floats, latencies_s: Sequence[float], workload: str, cluster: str) -> None:
        """Append rows of one workload."""
        self.features += list(features)
        self.latencies_s += [float(latency) for latency in latencies_s]
        self.workloads += [workload] * len(features)
        self.clusters += [cluster] * len(features)

    def labels(self) -> Floats:
        """Relative throughput of each row, float32 (n,): 1.0 for the best of its workload, 0.0 for a failure."""
        best: dict[str, float] = {}
        for workload, latency in zip(self.workloads, self.latencies_s, strict=True):
            best[workload] = min(latency, best.get(workload, math.inf))
        pairs = zip(self.workloads, self.latencies_s, strict=True)
        return np.array([best[w] / t if math.isfinite(t) else 0.0 for w, t in pairs], dtype=np.float32)

    def select(self, mask: NDArray[np.bool_]) -> Samples:
        """The rows where the mask is true."""
        rows = np.flatnonzero(mask)
        picks = ([values[i] for i in rows] for values in (self.features, self.latencies_s, self.workloads, self.clusters))
        return Samples(*picks)  # type: ignore[arg-type]


class LatencyModel:
    """One model for all tasks of a target: a base trained on every cluster, and on top of it a few trees for each cluster.

    Attributes:
        n_pretrained: Samples that came from the registry.
        held_out_accuracy: Rank accuracy on held-out workloads, from the last snapshot.
        train_s: Seconds spent in training.

    Not safe to share between threads.
    """

    def __init__(self, *, seed: int, across_clusters: bool = True, fine_tune: bool = True) -> None:
        """An empty model: it predicts nothing until it has seen a round.

        Args:
            across_clusters: False trains a model of its own for each cluster: for comparison.
            fine_tune: False predicts with the base alone: for comparison.
        """
        self.samples = Samples()
        self.n_pretrained = 0
        self.held_out_accuracy: float | None = None
        self.train_s = 0.0
        self._params = {**_PARAMS, "seed": seed}
        self._across_clusters, self._fine_tune = across_clusters, fine_tune
        self._base: xgboost.Booster | None = None
        self._n_base = 0
        self._fine: dict[str, xgboost.Booster | None] = {}

    def update(self, features: Floats, latencies_s: Sequence[float], workload: str, cluster: str) -> None:
        """Take in measured candidates: features float32 (n, n_features), latencies in seconds (infinite for failures)."""
        self.samples.add(features, latencies_s, workload, cluster)
        self._fine.pop(cluster, None)
        if len(self.samples) >= max(_MIN_SAMPLES, self._n_base * _GROWTH):
            self._train_base()

    def predict(self, features: Floats, cluster: str) -> NDArray[np.float64] | None:
        """Scores, float64 (n,), higher is faster; None before anything was learnt."""
        if self._base is None or not len(features):
            return None
        booster = self._fine_tuned(cluster)
        return None if booster is None else np.asarray(booster.inplace_predict(features), dtype=np.float64)

    def snapshot(self, target: str, feature_width: int) -> CostModelSnapshot | None:
        """Everything that was learnt, trained anew on all samples; None when there are too few."""
        if len(self.samples) < _MIN_SAMPLES:
            return None
        self._train_base()
        assert self._base is not None
        self.held_out_accuracy = self.rank_accuracy()
        booster = bytes(self._base.save_raw("ubj"))
        metadata = {
            "booster": digest_of(booster),
            "extractor": EXTRACTOR,
            "n_features": feature_width,
            "n_samples": len(self.samples),
            "n_workloads": len(set(self.samples.workloads)),
            "rank_accuracy": self.held_out_accuracy,
            "xgboost": xgboost.__version__,
        }
        return CostModelSnapshot(target, booster, _pack(self.samples), metadata, time.time())

    def pretrain(self, snapshot: CostModelSnapshot, feature_width: int) -> None:
        """Start from a registry's snapshot: its booster is used as it is, and its samples join later training.

        Raises:
            CostModelError: Another extractor, width or major xgboost version, or bytes that are not a model.
        """
        expected = {"extractor": EXTRACTOR, "n_features": feature_width}
        for name, value in expected.items():
            if snapshot.metadata.get(name) != value:
                raise CostModelError(f"the snapshot's {name} is {snapshot.metadata.get(name)}, this release needs {value}")
        theirs, ours = (str(v).split(".")[0] for v in (snapshot.metadata.get("xgboost"), xgboost.__version__))
        if theirs != ours:
            raise CostModelError(f"the snapshot was written by xgboost {theirs}, {ours} is installed")
        if snapshot.metadata.get("booster") != digest_of(snapshot.booster):  # xgboost crashes or hangs on broken bytes
            raise CostModelError("the snapshot's booster is damaged")
        check_booster(snapshot.booster, feature_width)
        booster = xgboost.Booster(self._params)
        try:
            booster.load_model(bytearray(snapshot.booster))
        except (xgboost.core.XGBoostError, ValueError) as error:
            raise CostModelError("the snapshot's booster cannot be read") from error
        if booster.num_features() != feature_width:
            raise CostModelError(f"the booster has {booster.num_features()} features, {feature_width} expected")
        self.samples = _unpack(snapshot.samples, feature_width)
        self._fine.clear()
        self._base, self._n_base, self.n_pretrained = booster, len(self.samples), len(self.samples)

    def rank_accuracy(self, *, share: float = 0.2) -> float | None:
        """Share of pairs of one workload that a model which never saw that workload orders right; None with too few."""
        names = sorted(set(self.samples.workloads))
        held_out = set(names[:: max(2, round(1 / share))])
        mask = np.array([w in held_out for w in self.samples.workloads])
        if len(names) < 3 or (~mask).sum() < _MIN_SAMPLES:
            return None
        booster = self._train(self.samples.select(~mask), _BASE_ROUNDS)
        test = self.samples.select(mask)
        return pair_accuracy(booster.inplace_predict(np.array(test.features)), test.labels(), test.workloads)

    def _train_base(self) -> None:
        if len(self.samples) > _MAX_SAMPLES:
            newest = np.arange(len(self.samples)) >= len(self.samples) - _MAX_SAMPLES
            self.samples = self.samples.select(newest)
        self._base = self._train(self.samples, _BASE_ROUNDS)
        self._n_base = len(self.samples)
        self._fine.clear()

    def _fine_tuned(self, cluster: str) -> xgboost.Booster | None:
        if cluster in self._fine:
            return self._fine[cluster]
        own = self.samples.select(np.array([c == cluster for c in self.samples.clusters], dtype=np.bool_))
        if not self._across_clusters:
            booster = self._train(own, _BASE_ROUNDS) if len(own) >= _MIN_GROUP_SAMPLES else None
        elif self._fine_tune and len(own) >= _MIN_GROUP_SAMPLES:
            booster = self._train(own, _FINE_ROUNDS, self._base)
        else:
            booster = self._base
        self._fine[cluster] = booster
        return booster

    def _train(self, samples: Samples, rounds: int, base: xgboost.Booster | None = None) -> xgboost.Booster:
        began = time.monotonic()
        matrix = xgboost.QuantileDMatrix(
            np.array(samples.features, dtype=np.float32), label=samples.labels(), max_bin=_PARAMS["max_bin"], nthread=1
        )
        booster = xgboost.train(self._params, matrix, num_boost_round=rounds, xgb_model=base)
        self.train_s += time.monotonic() - began
        return booster


def pair_accuracy(scores: NDArray[Any], labels: Floats, workloads: Sequence[str]) -> float | None:
    """Share of pairs within a workload, with labels at least 5% apart, whose scores are in the labels' order."""
    right = total = 0
    names = np.array(workloads)
    for name in set(workloads):
        rows = names == name
        label, score = labels[rows], scores[rows]
        above = label[:, None] > label[None, :] + 0.05
        right += int((above & (score[:, None] > score[None, :])).sum())
        total += int(above.sum())
    return right / total if total else None


_ARRAYS = ("features", "latencies_s", "workloads", "clusters")


def _pack(samples: Samples) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        features=np.array(samples.features, dtype=np.float32),
        latencies_s=np.array(samples.latencies_s, dtype=np.float64),
        workloads=np.array(samples.workloads, dtype="U64"),
        clusters=np.array(samples.clusters, dtype="U64"),
    )
    return buffer.getvalue()


def _unpack(data: bytes, feature_width: int) -> Samples:
    features, latencies, workloads, clusters = read_arrays(data, _ARRAYS)
    n = len(features)
    if features.shape != (n, feature_width) or any(column.shape != (n,) for column in (latencies, workloads, clusters)):
        raise CostModelError(f"the snapshot's samples have the shape {features.shape}, ({n}, {feature_width}) expected")
    if [a.dtype.kind + str(a.dtype.itemsize) for a in (features, latencies)] != ["f4", "f8"] or {
        workloads.dtype.kind,
        clusters.dtype.kind,
    } != {"U"}:
        raise CostModelError("the snapshot's samples have other types than this release needs")
    if not np.isfinite(features).all() or not (latencies > 0.0).all():
        raise CostModelError("the snapshot's samples hold what nobody can measure")
    return Samples(list(features), latencies.tolist(), workloads.tolist(), clusters.tolist())
