from __future__ import annotations

import dataclasses
import io
import math
from typing import Any

import numpy as np
import pytest
import xgboost
from numpy.typing import NDArray

from bcd_registry.errors import CostModelError
from bcd_registry.model import CostModelSnapshot, digest_of
from bcd_tuner.latency_model import EXTRACTOR, LatencyModel, Samples, pair_accuracy

WIDTH = 12
Floats = NDArray[np.float32]


def measured(n: int, seed: int, *, slope: float = 1.0, scale: float = 1.0) -> tuple[Floats, list[float]]:
    """Candidates whose latency depends on two of twelve features, and how."""
    rng = np.random.default_rng(seed)
    features = rng.random((n, WIDTH)).astype(np.float32)
    work = np.exp(slope * features[:, 0]) + 0.5 * features[:, 3] ** 2
    return features, [float(t) for t in scale * 1e-3 * work * rng.normal(1.0, 0.02, n)]


def taught(n_workloads: int = 6, n: int = 40, seed: int = 0) -> LatencyModel:
    model = LatencyModel(seed=seed)
    for i in range(n_workloads):
        features, latencies = measured(n, i, scale=10.0 ** (i - 3))
        model.update(features, latencies, f"workload {i}", f"cluster {i % 3}")
    return model


def snapshot_of(model: LatencyModel) -> CostModelSnapshot:
    snapshot = model.snapshot("target", WIDTH)
    assert snapshot is not None
    return snapshot


def scores_of(model: LatencyModel, features: Floats, cluster: str) -> NDArray[np.float64]:
    scores = model.predict(features, cluster)
    assert scores is not None
    return scores


@pytest.mark.parametrize("cluster", ["cluster 0", "a cluster never seen"])
def test_it_learns_to_rank_candidates_of_a_workload_it_never_saw(cluster: str) -> None:
    features, latencies = measured(200, 99, scale=1e3)
    labels = np.array(min(latencies) / np.array(latencies), dtype=np.float32)
    accuracy = pair_accuracy(scores_of(taught(), features, cluster), labels, ["w"] * 200)
    assert accuracy is not None
    assert accuracy > 0.85


def test_it_says_nothing_before_it_has_seen_enough() -> None:
    model = LatencyModel(seed=0)
    features, latencies = measured(15, 0)
    assert model.predict(features, "c") is None
    model.update(features, latencies, "w", "c")
    assert model.predict(features, "c") is None
    assert model.snapshot("target", WIDTH) is None
    model.update(features[:1], latencies[:1], "w", "c")
    assert scores_of(model, features, "c").shape == (15,)
    assert model.predict(features[:0], "c") is None


def test_nothing_but_failures_teaches_that_all_are_equal() -> None:
    model = LatencyModel(seed=0)
    features, _ = measured(20, 0)
    model.update(features, [math.inf] * 20, "w", "c")
    assert np.ptp(scores_of(model, features, "c")) == pytest.approx(0.0)


def test_labels_are_relative_to_the_workloads_best() -> None:
    samples = Samples()
    rows = np.zeros((3, WIDTH), dtype=np.float32)
    samples.add(rows, [2e-3, 1e-3, math.inf], "w", "c")
    samples.add(rows[:2], [5.0, 4.0], "v", "c")
    samples.add(rows[:1], [math.inf], "u", "c")
    assert list(samples.labels()) == pytest.approx([0.5, 1.0, 0.0, 0.8, 1.0, 0.0])


def test_failures_are_ranked_last() -> None:
    model = LatencyModel(seed=0)
    features, latencies = measured(200, 0)
    broken = features[:, 5] > 0.6
    model.update(features, [math.inf if b else t for b, t in zip(broken, latencies, strict=True)], "w", "c")
    scores = scores_of(model, features, "c")
    assert scores[broken].mean() < scores[~broken].min() + 0.2


def test_a_cluster_is_fine_tuned_alone() -> None:
    model = taught()
    features, _ = measured(50, 123)
    before = {c: scores_of(model, features, c) for c in ("cluster 0", "cluster 1", "new")}
    opposite, latencies = measured(20, 7, slope=-3.0)
    model.update(opposite, latencies, "odd", "new")
    for cluster in ("cluster 0", "cluster 1"):
        assert np.array_equal(scores_of(model, features, cluster), before[cluster])
    assert not np.allclose(scores_of(model, features, "new"), before["new"])


def test_fine_tuning_learns_what_is_particular_to_a_cluster() -> None:
    model = taught(n=80)
    features, latencies = measured(100, 7, slope=-2.0)
    model.update(features, latencies, "odd", "new")
    others, truth = measured(200, 8, slope=-2.0)
    labels = np.array(min(truth) / np.array(truth), dtype=np.float32)
    own, base = (pair_accuracy(scores_of(model, others, c), labels, ["w"] * 200) for c in ("new", "unknown"))
    assert own is not None
    assert base is not None
    assert own > base + 0.1


def test_it_trains_again_only_when_it_has_grown() -> None:
    model = taught(n_workloads=3, n=50)
    features, latencies = measured(10, 5)
    before = scores_of(model, features, "unknown")
    model.update(features, latencies, "w", "c")
    assert np.array_equal(scores_of(model, features, "unknown"), before)
    for i in range(10):
        model.update(*measured(10, 20 + i), f"w{i}", "c")
    assert not np.array_equal(scores_of(model, features, "unknown"), before)


def test_the_same_seed_and_samples_give_the_same_predictions() -> None:
    features, _ = measured(30, 50)
    first, second = (scores_of(taught(seed=3), features, "cluster 1") for _ in range(2))
    assert np.array_equal(first, second)


def test_a_snapshot_predicts_as_the_model_it_was_made_of() -> None:
    model = taught()
    snapshot = snapshot_of(model)
    again = LatencyModel(seed=0)
    again.pretrain(snapshot, WIDTH)
    features, _ = measured(100, 77)
    for cluster in ("cluster 0", "cluster 2", "unknown"):
        assert np.array_equal(scores_of(again, features, cluster), scores_of(model, features, cluster))
    assert again.n_pretrained == len(again.samples) == len(model.samples) == 240
    assert snapshot_of(again).metadata == snapshot.metadata


def test_a_snapshot_says_what_it_is() -> None:
    snapshot = snapshot_of(taught())
    accuracy = snapshot.metadata["rank_accuracy"]
    assert 0.8 < accuracy <= 1.0
    assert dict(snapshot.metadata) == {
        "booster": digest_of(snapshot.booster),
        "extractor": EXTRACTOR,
        "n_features": WIDTH,
        "n_samples": 240,
        "n_workloads": 6,
        "rank_accuracy": accuracy,
        "xgboost": xgboost.__version__,
    }


def test_what_is_pretrained_joins_later_training() -> None:
    again = LatencyModel(seed=0)
    again.pretrain(snapshot_of(taught()), WIDTH)
    features, latencies = measured(100, 55, slope=2.0)
    again.update(features, latencies, "later", "later")
    assert len(again.samples) == 340
    assert snapshot_of(again).metadata["n_workloads"] == 7
    assert again.n_pretrained == 240


def test_pretraining_forgets_what_was_fine_tuned_before() -> None:
    features, _ = measured(30, 50)
    snapshot = snapshot_of(taught())
    fresh, used = LatencyModel(seed=0), LatencyModel(seed=0)
    used.update(*measured(40, 1, slope=-2.0), "w", "cluster 0")
    used.predict(features, "cluster 0")
    for model in (fresh, used):
        model.pretrain(snapshot, WIDTH)
    assert np.array_equal(scores_of(used, features, "cluster 0"), scores_of(fresh, features, "cluster 0"))


def test_too_few_workloads_have_no_accuracy() -> None:
    assert taught(n_workloads=2).rank_accuracy() is None
    assert taught(n_workloads=3, n=6).rank_accuracy() is None
    assert pair_accuracy(np.zeros(2), np.ones(2, dtype=np.float32), ["a", "b"]) is None


def test_pairs_that_are_nearly_equal_do_not_count() -> None:
    labels = np.array([1.0, 0.97, 0.5], dtype=np.float32)
    assert pair_accuracy(np.array([1.0, 2.0, 0.0]), labels, ["w"] * 3) == 1.0
    assert pair_accuracy(np.array([1.0, 2.0, 1.5]), labels, ["w"] * 3) == 0.5
    assert pair_accuracy(np.array([0.0, 0.0, 0.0]), labels, ["w"] * 3) == 0.0


@pytest.mark.parametrize(
    "change",
    [{"extractor": "another/1"}, {"extractor": None}, {"n_features": WIDTH + 1}, {"xgboost": "1.7.0"}, {"xgboost": None}],
)
def test_a_snapshot_of_another_kind_is_refused(change: dict[str, Any]) -> None:
    snapshot = snapshot_of(taught(n_workloads=1))
    other = dataclasses.replace(snapshot, metadata={**snapshot.metadata, **change})
    refused(other)


def test_a_booster_of_another_width_is_refused() -> None:
    snapshot = snapshot_of(taught(n_workloads=1))
    matrix = xgboost.DMatrix(np.random.default_rng(0).random((20, WIDTH - 1)), label=np.zeros(20))
    other = xgboost.train({}, matrix, num_boost_round=1)
    booster = bytes(other.save_raw("ubj"))
    refused(dataclasses.replace(snapshot, booster=booster, metadata={**snapshot.metadata, "booster": digest_of(booster)}))


@pytest.mark.parametrize("booster", [b"", b"not a model", b"{}", b"\x80\x04K\x01."])
def test_a_broken_booster_is_refused(booster: bytes) -> None:
    refused(dataclasses.replace(snapshot_of(taught(n_workloads=1)), booster=booster))


def test_a_booster_of_another_format_is_refused() -> None:
    snapshot = snapshot_of(taught(n_workloads=1))
    booster = b'{"learner": 1}'
    refused(dataclasses.replace(snapshot, booster=booster, metadata={**snapshot.metadata, "booster": digest_of(booster)}))


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_cut_booster_or_sample_file_is_refused(share: float) -> None:
    snapshot = snapshot_of(taught(n_workloads=1))
    refused(dataclasses.replace(snapshot, booster=snapshot.booster[: int(share * len(snapshot.booster))]))
    refused(dataclasses.replace(snapshot, samples=snapshot.samples[: int(share * len(snapshot.samples))]))


GOOD: dict[str, Any] = {
    "features": np.zeros((4, WIDTH), dtype=np.float32),
    "latencies_s": np.full(4, 1e-3),
    "workloads": np.array(["w"] * 4),
    "clusters": np.array(["c"] * 4),
}


def npz(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def test_samples_as_they_should_be_are_taken() -> None:
    model = LatencyModel(seed=0)
    model.pretrain(dataclasses.replace(snapshot_of(taught(n_workloads=1)), samples=npz(**GOOD)), WIDTH)
    assert len(model.samples) == 4


@pytest.mark.parametrize(
    "samples",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"not an archive", id="text"),
        pytest.param(b"PK\x03\x04 not an archive", id="zip"),
        pytest.param(npy(np.zeros((4, WIDTH))), id="one array"),
        pytest.param(npy(np.array([{}], dtype=object)), id="pickle"),
        pytest.param(npz(**{**GOOD, "features": np.array([[{}] * WIDTH] * 4, dtype=object)}), id="pickled features"),
        pytest.param(npz(**{**GOOD, "workloads": np.array([{}] * 4, dtype=object)}), id="pickled names"),
        pytest.param(npz(**{k: v for k, v in GOOD.items() if k != "clusters"}), id="part missing"),
        pytest.param(npz(**{**GOOD, "features": np.zeros((4, WIDTH + 1), dtype=np.float32)}), id="width"),
        pytest.param(npz(**{**GOOD, "features": np.zeros((4, WIDTH))}), id="dtype"),
        pytest.param(npz(**{**GOOD, "features": np.full((4, WIDTH), np.nan, dtype=np.float32)}), id="not a number"),
        pytest.param(npz(**{**GOOD, "features": np.full((4, WIDTH), np.inf, dtype=np.float32)}), id="infinite"),
        pytest.param(npz(**{**GOOD, "latencies_s": np.full(5, 1e-3)}), id="length"),
        pytest.param(npz(**{**GOOD, "latencies_s": np.full((4, 1), 1e-3)}), id="rank"),
        pytest.param(npz(**{**GOOD, "latencies_s": np.array(["slow"] * 4)}), id="words"),
        pytest.param(npz(**{**GOOD, "latencies_s": np.zeros(4)}), id="zero"),
        pytest.param(npz(**{**GOOD, "latencies_s": np.full(4, -1.0)}), id="negative"),
        pytest.param(npz(**{**GOOD, "latencies_s": np.full(4, np.nan)}), id="latency not a number"),
        pytest.param(npz(**{**GOOD, "workloads": np.arange(4)}), id="numbers for names"),
        pytest.param(npz(**{**GOOD, "clusters": np.array(["c"] * 3)}), id="names missing"),
    ],
)
def test_samples_that_are_not_what_they_should_be_are_refused(samples: bytes) -> None:
    refused(dataclasses.replace(snapshot_of(taught(n_workloads=1)), samples=samples))


def refused(snapshot: CostModelSnapshot) -> None:
    """The model says so and stays as it was."""
    model = taught(n_workloads=1)
    features, _ = measured(10, 3)
    before = scores_of(model, features, "cluster 0")
    with pytest.raises(CostModelError):
        model.pretrain(snapshot, WIDTH)
    assert np.array_equal(scores_of(model, features, "cluster 0"), before)
    assert model.n_pretrained == 0
