"""The verdict on a network: one disturbed timing does not make it slower, a slower one stays so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bcd_tuner import compile as compile_module
from bcd_tuner.compile import NetworkCheck, check_network

Timings = list[tuple[float, ...]]

CALM: Timings = [(0.004, 0.004), (0.001, 0.001)]
DISTURBED: Timings = [(0.004, 0.004), (0.02, 0.02)]


class Program:
    """Stands for a compiled network: computes one number."""

    def __init__(self, value: float = 1.0) -> None:
        self._value = value

    def __call__(self, inputs: Any) -> list[Any]:
        return [np.full(2, self._value, dtype=np.float32)]

    def bind(self, inputs: Any) -> Callable[[], None]:
        return lambda: None


def check(monkeypatch: pytest.MonkeyPatch, *timings: Timings, tuned: float = 1.0) -> NetworkCheck:
    """A check whose timings come out as given."""
    coming = iter(timings)
    monkeypatch.setattr(compile_module, "time_in_turns", lambda calls: next(coming))
    return check_network(Program(), Program(tuned), [], None)  # type: ignore[arg-type]


def test_a_timing_that_something_disturbed_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = check(monkeypatch, DISTURBED, DISTURBED, CALM)
    assert not outcome.slower
    assert [outcome.untuned_s, outcome.tuned_s] == CALM


def test_a_network_that_stays_slower_is_called_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check(monkeypatch, DISTURBED, DISTURBED, DISTURBED).slower


def test_outputs_that_differ_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = check(monkeypatch, CALM, tuned=2.0)
    assert not outcome.equal
    assert outcome.worst
