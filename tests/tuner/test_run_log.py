"""What a tune puts on record, as plain values."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from pydantic import TypeAdapter

from bcd_registry.model import Grade
from bcd_tuner.report import CurvePoint
from bcd_tuner.run_log import PARENT_TAG, RUN_TAG, RunLog, coverage, make_run_log, without_secrets
from tests.tuner.reports import tuned_report

ENDED_S = 1_700_000_061.5


@pytest.fixture(scope="module")
def log() -> RunLog:
    return make_run_log(
        tuned_report(), params={"git_commit": "c0ffee", "time_budget_s": None, "long": "x" * 999}, ended_s=ENDED_S
    )


def _series(log: RunLog, name: str) -> list[tuple[int, float]]:
    return [(point.step, point.value) for point in log.points if point.name == name]


def test_the_run_says_what_it_is_of(log: RunLog) -> None:
    assert (log.name, log.status, log.run_id) == ("ppocr-det v6 seed 0", "FINISHED", "0123456789abcdef")
    assert (log.started_s, log.ended_s) == (1_700_000_000.0, ENDED_S)
    assert (
        log.tags.items() >= {RUN_TAG: log.run_id, "bcd.network": "ppocr-det", "bcd.version": "v6", "bcd.kind": "tune"}.items()
    )
    assert log.tags["mlflow.source.git.commit"] == "c0ffee"
    assert log.params.items() >= {"network": "ppocr-det", "environment": "e" * 64, "seed": "0", "git_commit": "c0ffee"}.items()
    assert log.params["saved_basis"].startswith("0.47 s a trial")
    assert len(log.params["long"]) == 500
    assert "time_budget_s" not in log.params


def test_curves_are_there_against_trials_and_against_seconds(log: RunLog) -> None:
    curve = tuned_report().curve
    assert _series(log, "estimated_ms_by_trials") == [(p.trials, p.estimated_ms) for p in curve]
    assert _series(log, "estimated_ms_by_seconds") == [(int(p.seconds), p.estimated_ms) for p in curve]
    step, share = _series(log, "coverage_by_trials/exact")[0]
    assert step == 0
    assert share == pytest.approx(8.03 / 16.281)
    cold = _series(log, "coverage_by_seconds/cold")
    assert [value for _, value in cold] == sorted(value for _, value in cold)
    assert cold[0][1] == 0.0
    assert cold[-1][1] > 0.0


def test_coverage_ends_with_every_task_that_has_a_schedule() -> None:
    report = tuned_report()
    first, last = coverage(report)[0][1], coverage(report)[-1][1]
    assert first[Grade.CLUSTER] == 0.0
    assert sum(last.values()) == pytest.approx(1.0)
    unknown = replace(report, tasks=tuple(replace(task, before_ms=None) for task in report.tasks))
    assert sum(coverage(unknown)[-1][1].values()) == pytest.approx(1.0)
    assert coverage(replace(report, tasks=()))[-1][1][Grade.COLD] == 0.0


def test_figures_have_their_spread_and_hits(log: RunLog) -> None:
    figures = {point.name: point.value for point in log.points}
    wanted = {
        "end_to_end_ms.tuned": 4.1,
        "end_to_end_ms.tuned_p10": 4.0,
        "end_to_end_ms.tuned_p90": 4.4,
        "end_to_end_ms.onnxruntime": 5.2,
        "trials": 96.0,
        "wall_s": 61.5,
        "tuning_s": 45.0,
        "saved_s_estimated": 52.5,
        "refuted_priors": 1.0,
        "hits.exact": 3.0,
        "hits.stale": 0.0,
    }
    assert figures.items() >= wanted.items()


def test_each_cluster_is_a_run_below_with_its_curve_and_decisions(log: RunLog) -> None:
    assert len(log.children) == 7
    first = log.children[0]
    assert first.name == "conv2d+add+relu aa110000"
    assert first.tags.items() >= {PARENT_TAG: log.run_id, "bcd.network": "ppocr-det", "bcd.cluster": f"{'aa11':0<64}"}.items()
    assert RUN_TAG not in first.tags
    assert "SamplePerfectTile [4, 14]" in first.tags["mlflow.note.content"]
    curve = _series(first, "estimated_ms_by_trials")
    assert [step for step, _ in curve] == [8, 16, 24, 32]
    assert [value for _, value in curve] == pytest.approx([5.6, 3.6, 3.6, 2.6])
    ((_, tuned_ms),) = _series(first, "estimated_ms.tuned")
    assert tuned_ms == pytest.approx(2.6)
    softmax = next(child for child in log.children if child.name.startswith("softmax"))
    assert _series(softmax, "estimated_ms_by_trials") == []


def test_decisions_that_are_too_long_for_a_tag_are_in_the_parents_file() -> None:
    report = tuned_report()
    many = replace(report.tasks[0], decisions=report.tasks[0].decisions * 400)
    log = make_run_log(replace(report, tasks=(many,)), params={}, ended_s=ENDED_S)
    assert len(log.children[0].tags["mlflow.note.content"]) < 5000
    assert log.texts["decisions.txt"].count("SampleCategorical 2") == 400


def test_tables_have_a_row_a_task_and_a_row_a_cluster(log: RunLog) -> None:
    assert {len(column) for column in log.tables["tasks.json"].values()} == {9}
    assert log.tables["tasks.json"]["grade"][:3] == ["exact", "cluster", "cold"]
    assert "decisions" not in log.tables["tasks.json"]
    assert log.tables["clusters.json"]["trials"][0] == 32
    assert json.loads(log.texts["report.json"]) == json.loads(json.dumps(tuned_report().as_json()))


def test_an_empty_interrupted_run_is_logged_too() -> None:
    report = tuned_report(tasks=(), curve=(), interrupted=True)
    log = make_run_log(report, params={}, ended_s=ENDED_S)
    assert (log.status, log.children, log.tables["tasks.json"]) == ("KILLED", (), {"name": []})


def test_what_is_not_finite_is_left_out() -> None:
    log = make_run_log(tuned_report(curve=(CurvePoint(0.0, 0, float("inf")),)), params={}, ended_s=ENDED_S)
    assert _series(log, "estimated_ms_by_trials") == []


def test_it_survives_its_json(log: RunLog) -> None:
    adapter = TypeAdapter(RunLog)
    assert adapter.validate_json(adapter.dump_json(log)) == log


def test_no_secret_is_in_it() -> None:
    urls = {
        "registry": "postgresql+psycopg://bcd:nobodyssecret@db/bcd, blobs in s3://bucket/team",
        "source": "https://user:nobodyssecret@host/net.onnx?token=nobodyssecret",
    }
    log = make_run_log(tuned_report(), params=urls, ended_s=ENDED_S)
    assert "nobodyssecret" not in TypeAdapter(RunLog).dump_json(log).decode()
    assert log.params["registry"] == "postgresql+psycopg://bcd:***@db/bcd, blobs in s3://bucket/team"
    assert without_secrets("models:/ocr-det@champion") == "models:/ocr-det@champion"
