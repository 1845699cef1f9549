"""`bcd-registry compare`: text, JSON, and a page that a real browser shows without a network."""

from __future__ import annotations

import html.parser
import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bcd_registry.model import RunSummary
from bcd_registry.settings import load_settings, open_registry
from bcd_tuner.report import TuneReport
from bcd_tuner.tracking import Tracker
from tests.browser import browser_path, in_browser, keep_picture, open_page
from tests.cli.conftest import Invoke
from tests.tuner.reports import latency, other_tasks, run_of, tuned_report

Fill = Callable[..., None]
BEGAN = 1_764_600_000.0
CLOSE_ASSISTANT = "document.querySelector('[aria-label=Close]')?.click()"
FOCUS_SEARCH = "document.querySelector('input[placeholder=\"Search metric charts\"]').focus()"


@pytest.fixture
def fill(home: Path, tmp_path: Path) -> Fill:
    """Put runs into the registry, and both versions into the configuration."""
    (tmp_path / "bcd-registry.toml").write_text(
        '[networks.v1]\nsource = "a.onnx"\nname = "ppocr-det"\nversion = "v4"\n'
        '[networks.v2]\nsource = "b.onnx"\nname = "ppocr-det"\nversion = "v6"\n'
    )

    def put(*runs: RunSummary) -> None:
        with open_registry(load_settings(home=home)) as registry:
            for run in runs:
                registry.put_run(run)

    return put


def reports() -> tuple[TuneReport, TuneReport]:
    """A first version, and a second that shares some of its tasks."""
    before = tuned_report(run_id="a1" * 16, version="v4", latency_ms=latency(5.2, untuned=20.0), mlflow_run_id=None)
    now = tuned_report(run_id="b2" * 16, latency_ms=latency(4.1, untuned=16.75), mlflow_run_id=None)
    curve = tuple(
        replace(p, trials=p.trials * 3, seconds=p.seconds * 3, estimated_ms=p.estimated_ms * 1.2) for p in before.curve
    )
    return replace(before, curve=curve, trials=288), replace(now, tasks=other_tasks(now.tasks, keep=6))


def runs() -> tuple[RunSummary, RunSummary]:
    before, now = reports()
    return run_of(before, created_at=BEGAN, tuning_s=135.0), run_of(now, created_at=BEGAN + 600)


def test_it_prints_what_differs(invoke: Invoke, fill: Fill) -> None:
    fill(*runs())
    result = invoke("compare", "v1", "v2")
    assert result.exit_code == 0, result.stderr
    for text in (
        "v1: ppocr-det v4",
        "v2: ppocr-det v6",
        "21.2% lower",
        "6 shared",
        "2 sibling",
        "1 new",
        "what costs most in v2",
    ):
        assert text in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_it_answers_no_difference_seen(invoke: Invoke, fill: Fill) -> None:
    before, now = reports()
    fill(run_of(replace(before, latency_ms=latency(4.2, untuned=16.9))), run_of(now))
    assert "no difference seen" in invoke("compare", "v1", "v2").stdout


def test_json(invoke: Invoke, fill: Fill) -> None:
    fill(*runs())
    found = json.loads(invoke("compare", "ppocr-det:v4", "ppocr-det:v6", "--json").stdout)
    assert found["schema"] == 1
    assert (found["first"]["label"], found["second"]["run_ids"]) == ("ppocr-det:v4", ["b2" * 16])
    assert found["latency"] == {"change": "lower", "ratio": pytest.approx(4.1 / 5.2), "reason": "their ranges do not overlap"}
    assert len(found["costly"]) == 9


def test_runs_by_their_id_and_several_seeds(invoke: Invoke, fill: Fill) -> None:
    _, now = reports()
    more = [run_of(replace(now, run_id=f"{n:032x}", seed=n), created_at=BEGAN + 700 + n) for n in (1, 2)]
    fill(*runs(), *more)
    found = json.loads(invoke("compare", "v1", "v2", "--seed-runs", "3", "--json").stdout)
    assert found["second"]["seeds"] == [2, 1, 0]
    assert len(found["first"]["run_ids"]) == 1
    by_id = json.loads(invoke("compare", "a1a1a1a1", "b2b2b2b2b2", "--json").stdout)
    assert (by_id["first"]["version"], by_id["second"]["run_ids"]) == ("v4", ["b2" * 16])


def test_runs_of_two_machines_are_not_compared_by_time(invoke: Invoke, fill: Fill) -> None:
    before, now = runs()
    fill(before, replace(now, environment_key="f" * 64))
    result = invoke("compare", "v1", "v2")
    assert "not compared" in result.stdout
    assert "other environments" in " ".join(result.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["v1", "v2"], 2, "no tune of ppocr-det:v6 has come to its end"),
        (["v1", "v3"], 2, "no network is called 'v3'"),
        (["v1", "v1", "--html", "/proc/nowhere/page.html"], 2, "cannot write /proc/nowhere/page.html"),
    ],
)
def test_what_cannot_be_compared(invoke: Invoke, fill: Fill, arguments: Sequence[str], code: int, message: str) -> None:
    before, now = runs()
    fill(before, replace(now, finished=False))
    result = invoke("compare", *arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert message in result.stderr
    assert result.stderr.splitlines()[-1].startswith("hint: ")


class _Outline(html.parser.HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "rect", "line", "path"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def page_of(invoke: Invoke, fill: Fill, path: Path, *, op: str = "conv2d+add+relu") -> str:
    _, now = reports()
    named = replace(now, tasks=(replace(now.tasks[0], op=op), *now.tasks[1:]))
    fill(runs()[0], run_of(named, created_at=BEGAN + 600))
    assert invoke("compare", "v1", "v2", "--html", str(path)).exit_code == 0
    return path.read_text(encoding="utf-8")


def test_the_page_is_whole_accessible_and_needs_nothing(invoke: Invoke, fill: Fill, tmp_path: Path) -> None:
    page = page_of(invoke, fill, tmp_path / "page.html", op='conv2d<script>alert("x")</script>')
    outline = _Outline()
    outline.feed(page)
    assert outline.open == []
    tags = [tag for tag, _ in outline.tags]
    assert page.startswith('<!DOCTYPE html>\n<html lang="en">')
    assert "<title>ppocr-det v4 and ppocr-det v6: comparison</title>" in page
    charts = [attributes for tag, attributes in outline.tags if tag == "svg"]
    assert len(charts) == 4
    assert all(chart["role"] == "img" and len(chart["aria-label"] or "") > 20 for chart in charts)
    assert not {"script", "link", "img", "iframe"} & set(tags)
    assert not re.search(r"(?:src|href)=|url\(|@import|https?://", page)
    assert "prefers-color-scheme: dark" in page


def test_the_page_works_in_a_browser_without_a_network(invoke: Invoke, fill: Fill, tmp_path: Path) -> None:
    browser_path()
    path = tmp_path / "page.html"
    page_of(invoke, fill, path)

    async def visit() -> None:
        async with open_page(path.as_uri(), width=1000, height=2350, offline=True) as page:
            assert await page.evaluate("document.title") == "ppocr-det v4 and ppocr-det v6: comparison"
            assert await page.evaluate("document.querySelectorAll('svg rect').length") > 10
            assert await page.evaluate(
                "[...document.querySelectorAll('svg')].every(s => s.getBoundingClientRect().height > 50)"
            )
            assert await page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
            assert page.requested in ([], [path.as_uri()])
            light = await page.screenshot()
            dark = await page.screenshot(dark=True)
            ground = await page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert ground == "rgb(21, 25, 29)"
            assert light != dark
            keep_picture("compare-page.png", light)
            keep_picture("compare-page-dark.png", dark)

    in_browser(visit)


@pytest.mark.slow
def test_mlflow_shows_both_runs_beside_each_other(
    invoke: Invoke, fill: Fill, mlflow_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compare page of a real server, in a real browser."""
    logged = []
    for report in reports():
        unique = replace(report, run_id=f"{time.time_ns():032x}")
        tracked = Tracker(mlflow_url, patience_s=120.0).log(unique)
        assert tracked.run_id, tracked.note
        logged.append(replace(unique, mlflow_run_id=tracked.run_id, mlflow_experiment_id=tracked.experiment_id))
    fill(*(run_of(report, created_at=BEGAN + number) for number, report in enumerate(logged)))
    monkeypatch.setenv("BCD_MLFLOW_TRACKING_URI", mlflow_url)
    url: Any = json.loads(invoke("compare", "v1", "v2", "--json").stdout)["mlflow_url"]
    assert url.startswith(f"{mlflow_url}/#/compare-runs?runs=")
    browser_path()

    async def visit() -> None:
        async with open_page(url, width=1300, height=900) as page:
            names = "['ppocr-det v4 seed 0', 'ppocr-det v6 seed 0']"
            await page.until(f"{names}.every(name => document.body.innerText.includes(name))")
            await page.until("document.querySelector('.main-svg') !== null")
            await page.evaluate(CLOSE_ASSISTANT)
            keep_picture("mlflow-compare.png", await page.screenshot())
        runs_page = f"{mlflow_url}/#/experiments/{logged[0].mlflow_experiment_id}/runs"
        async with open_page(
            f"{runs_page}?compareRunsMode=CHART&workflowType=machine_learning", width=1300, height=900
        ) as page:
            await page.until("document.querySelectorAll('.main-svg').length > 2")
            await page.evaluate(CLOSE_ASSISTANT)
            await page.evaluate(FOCUS_SEARCH)
            await page.call("Input.insertText", text="estimated_ms_by")
            await page.until("document.body.innerText.includes('estimated_ms_by_trials')")
            await page.until("!document.body.innerText.includes('coverage_by')")
            await page.until("document.querySelectorAll('.main-svg').length > 2")
            keep_picture("mlflow-charts.png", await page.screenshot())

    in_browser(visit)
