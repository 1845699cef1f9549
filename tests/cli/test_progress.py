from __future__ import annotations

import io

import pytest
from rich.console import Console

from bcd_cli.progress import LiveProgress, PlainProgress, open_progress
from bcd_tuner.report import ProgressEvent


def _console(*, terminal: bool = False) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, width=80, force_terminal=terminal, color_system=None, _environ={}), file


def _tuning(elapsed_s: float, trials: int) -> ProgressEvent:
    return ProgressEvent("tune", "", "conv2d+add+relu (cluster)", 0.123, 3.21, trials, 560, elapsed_s, 151.0)


def test_plain_lines_are_few() -> None:
    console, file = _console()
    show = PlainProgress(console, every_s=10)
    show(ProgressEvent("lower", "55 tasks in 29 clusters", elapsed_s=3))
    for step in range(100):
        show(_tuning(elapsed_s=4 + step / 4, trials=step))
    show(ProgressEvent("check", "checking the winners", elapsed_s=30))
    lines = file.getvalue().splitlines()
    assert lines[0] == "[   0:03] lower: 55 tasks in 29 clusters"
    assert lines[1].startswith("[   0:04] tune: 0/560 trials, conv2d+add+relu (cluster) 0.123 ms")
    assert lines[1].endswith("all tasks 3.21 ms (estimated), about 2:31 left")
    assert [line[1:8].strip() for line in lines[2:]] == ["0:14", "0:24", "0:30"]


def test_names_from_networks_are_not_markup() -> None:
    console, file = _console()
    PlainProgress(console)(ProgressEvent("tune", "[red]x[/red] [1, 3, 48]"))
    assert "[red]x[/red] [1, 3, 48]" in file.getvalue()


@pytest.mark.parametrize("event", [_tuning(52, 120), ProgressEvent("compile", "", elapsed_s=70)])
def test_live_picture_fits_80_columns(event: ProgressEvent) -> None:
    console, file = _console(terminal=True)
    show = LiveProgress(console, now=lambda: 5.0)
    show(event)
    console.print(show)
    lines = file.getvalue().splitlines()
    assert len(lines) == 2
    assert max(map(len, lines)) <= 80
    assert event.phase in lines[0]


def test_live_picture_has_task_latency_trials_and_time_left() -> None:
    moments = iter([0.0, 0.0, 31.0])
    console, file = _console(terminal=True)
    show = LiveProgress(console, now=lambda: next(moments))
    show(_tuning(52, 120))
    console.print(show)
    bar, task = file.getvalue().splitlines()
    assert bar.split()[:2] == ["1:23", "tune"]
    assert bar.rstrip().endswith("120/560 trials, about 2:00 left")
    assert task.split() == ["conv2d+add+relu", "(cluster)", "0.123", "ms", "all", "tasks", "3.21", "ms", "(est.)"]


def test_terminal_gets_lines_that_stay_and_a_picture_that_goes() -> None:
    console, file = _console(terminal=True)
    with open_progress(console) as show:
        show(ProgressEvent("read", "reading net.onnx", elapsed_s=0.5))
        show(_tuning(52, 120))
    assert "read    reading net.onnx" in file.getvalue()
    assert not isinstance(show, PlainProgress)


def test_pipe_gets_plain_lines() -> None:
    console, _ = _console()
    with open_progress(console) as show:
        assert isinstance(show, PlainProgress)
