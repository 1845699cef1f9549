from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm.s_tir.meta_schedule.runner import RunnerResult
from tvm.s_tir.meta_schedule.search_strategy import MeasureCandidate

from bcd_registry.errors import CostModelError
from bcd_tuner.cost_model import FEATURE_WIDTH, STORE_WIDTH, DiffusionCostModel, candidate_features
from bcd_tuner.latency_model import LatencyModel
from bcd_tuner.search import TaskSearch
from bcd_tuner.snapshots import read_snapshot
from tests.tuner import tuning_programs as programs

MATMUL, CONVOLUTION = programs.matmul(32, 32, 32), programs.convolution(8, 8, activated=True)


def candidates_of(mod: Any, n: int) -> tuple[Any, list[MeasureCandidate]]:
    context, schedules = programs.context_of(mod)
    search = TaskSearch(mod, schedules, context.space_generator.postprocs, rng=np.random.default_rng(0))
    return context, [c.measure_candidate() for c in search.next_round(n, lambda candidates: None)]


def names_of(mod: Any) -> tuple[str, str]:
    """Workload and cluster: only the convolution has a second block."""
    return ("workload 2", "cluster 2") if "block_1" in str(mod) else ("workload 1", "cluster 1")


def cost_model(seed: int = 0) -> DiffusionCostModel:
    return DiffusionCostModel(LatencyModel(seed=seed), names_of)


def results_of(latencies_s: Sequence[float | None]) -> list[RunnerResult]:
    return [RunnerResult(None, "broken") if t is None else RunnerResult([t], None) for t in latencies_s]


@pytest.mark.parametrize("mod", [MATMUL, CONVOLUTION], ids=["matmul", "convolution"])
def test_a_candidate_is_one_row_of_known_width(mod: Any) -> None:
    context, candidates = candidates_of(mod, 6)
    rows = candidate_features(context, candidates)
    assert rows.shape == (6, FEATURE_WIDTH)
    assert rows.dtype == np.float32
    assert np.isfinite(rows).all()
    assert len(np.unique(rows, axis=0)) == 6
    assert (rows[:, :STORE_WIDTH] >= rows[:, STORE_WIDTH:-1]).all()
    assert (rows[:, -1] >= 1).all()


def test_features_do_not_depend_on_who_else_is_asked_about() -> None:
    context, candidates = candidates_of(MATMUL, 4)
    together = candidate_features(context, candidates)
    assert np.array_equal(together[2:3], candidate_features(context, candidates[2:3]))


def test_it_predicts_zeros_before_it_was_told_anything() -> None:
    context, candidates = candidates_of(MATMUL, 3)
    assert list(cost_model().predict(context, candidates)) == [0.0] * 3


def test_it_learns_from_what_metaschedule_tells_it() -> None:
    context, candidates = candidates_of(MATMUL, 32)
    model = cost_model()
    latencies = [None if i % 8 == 0 else 1e-3 * (1 + i) for i in range(32)]
    model.update(context, candidates, results_of(latencies))
    scores = model.predict(context, candidates)
    good = [i for i, t in enumerate(latencies) if t is not None]
    assert np.corrcoef([scores[i] for i in good], [-float(latencies[i] or 0) for i in good])[0, 1] > 0.5
    assert scores.shape == (32,)
    assert scores.dtype == np.float64


def test_one_model_serves_tasks_of_several_clusters() -> None:
    model = cost_model()
    for mod in (MATMUL, CONVOLUTION):
        context, candidates = candidates_of(mod, 16)
        model.update(context, candidates, results_of([1e-3 * (1 + i) for i in range(16)]))
    latency_model = model.model
    assert set(latency_model.samples.clusters) == {"cluster 1", "cluster 2"}
    assert set(latency_model.samples.workloads) == {"workload 1", "workload 2"}


def test_it_is_saved_as_plain_files_and_loaded(tmp_path: Path) -> None:
    context, candidates = candidates_of(MATMUL, 20)
    first, second = cost_model(), cost_model()
    first.update(context, candidates, results_of([1e-3 * (1 + i) for i in range(20)]))
    first.save(str(tmp_path / "model"))
    assert sorted(p.name for p in (tmp_path / "model").iterdir()) == ["booster.ubj", "samples.npz", "snapshot.json"]
    second.load(str(tmp_path / "model"))
    assert np.array_equal(first.predict(context, candidates), second.predict(context, candidates))


def test_nothing_learnt_is_nothing_saved(tmp_path: Path) -> None:
    with pytest.raises((CostModelError, RuntimeError), match="too few measurements"):
        cost_model().save(str(tmp_path / "model"))
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("name", ["booster.ubj", "samples.npz", "snapshot.json"])
def test_a_folder_with_a_file_missing_or_cut_is_no_model(name: str, tmp_path: Path) -> None:
    context, candidates = candidates_of(MATMUL, 20)
    model = cost_model()
    model.update(context, candidates, results_of([1e-3 * (1 + i) for i in range(20)]))
    model.save(str(tmp_path))
    file = tmp_path / name
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CostModelError):
        LatencyModel(seed=0).pretrain(read_snapshot(tmp_path), FEATURE_WIDTH)
    file.unlink()
    with pytest.raises(CostModelError):
        read_snapshot(tmp_path)
