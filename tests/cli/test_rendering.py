"""What people see, compared with files. To accept a change: `BCD_ACCEPT=1 pytest tests/cli`, then read the diff."""

from __future__ import annotations

import io
import os
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from bcd_cli.checks import Check
from bcd_cli.rendering.checks import render_checks
from bcd_cli.rendering.clusters import add_up, by_cluster, fold, row_of_report
from bcd_cli.rendering.plan import render_plan
from bcd_cli.rendering.report import render_report
from bcd_cli.rendering.text import clock, duration, milliseconds
from tests.cli.values import make_plan, make_report

GOLDEN = Path(__file__).with_name("golden")
UI = "mlflow ui --backend-store-uri sqlite:////home/somebody/.local/share/bcd-registry/mlflow.db"
CHECKS = (
    Check("tvm", "ok", "0.27.0.post1"),
    Check("tvm_ffi", "fail", "0.1.15.post2 does not work", "other versions crash: pip install 'apache-tvm-ffi<0.1.15'"),
    Check("onnxruntime", "warn", "not installed: outputs are not compared with it", "pip install onnxruntime"),
)


def _text(renderable: RenderableType) -> str:
    file = io.StringIO()
    Console(file=file, width=80, color_system=None).print(renderable, crop=False)
    return "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())


@pytest.mark.parametrize(
    ("name", "renderable"),
    [
        ("report", render_report(make_report(), UI)),
        ("report-cut", render_report(make_report(checked=False, interrupted=True, mlflow_run_id=None, curve_png=None), UI)),
        ("report-empty", render_report(make_report(tasks=(), trials=0, notes=()), None)),
        ("plan", render_plan(make_plan())),
        ("checks", render_checks(CHECKS)),
    ],
)
def test_golden(name: str, renderable: RenderableType) -> None:
    path, text = GOLDEN / f"{name}.txt", _text(renderable)
    if os.environ.get("BCD_ACCEPT"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
    unbroken = ("picture: ", "MLflow:  ")
    assert max(len(line) for line in text.splitlines() if not line.startswith(unbroken)) <= 80


def test_rows_add_up_whatever_is_folded() -> None:
    report = make_report()
    clusters = by_cluster([row_of_report(task) for task in report.tasks])
    rows = fold(clusters, max_rows=3)
    assert len(rows) == 4
    assert rows[-1].label == "4 more clusters"
    whole = add_up(rows, "all")
    assert (whole.n_tasks, whole.trials) == (len(report.tasks), report.trials)
    assert whole.before_ms == pytest.approx(report.latency_ms.estimated_untuned)
    assert whole.after_ms == pytest.approx(report.latency_ms.estimated_tuned)


def test_one_unknown_latency_makes_its_sum_unknown() -> None:
    tasks = make_report().tasks
    rows = [row_of_report(task) for task in tasks]
    assert add_up(rows, "all").before_ms is not None
    unknown = row_of_report(replace(tasks[0], before_ms=None))
    assert add_up([*rows, unknown], "all").before_ms is None


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.0, "0"), (0.00012, "0.0001"), (0.0123, "0.0123"), (0.1234, "0.123"), (1.234, "1.23"), (123.4, "123")],
)
def test_milliseconds(value: float | None, text: str) -> None:
    assert milliseconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (4.26, "4.3 s"), (59.94, "59.9 s"), (59.96, "1 min 00 s"), (65, "1 min 05 s"), (7384, "2 h 03 min")],
)
def test_durations(value: float | None, text: str) -> None:
    assert duration(value) == text


def test_clock() -> None:
    assert [clock(s) for s in (5, 754, 3723)] == ["0:05", "12:34", "1:02:03"]
