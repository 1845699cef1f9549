from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bcd_tuner.other_work import OtherWork


class Clockwork:
    """Stands in for psutil: two cores, this process and one child, whose times only grow when told."""

    Error = RuntimeError

    def __init__(self) -> None:
        self.core = SimpleNamespace(user=5.0, nice=0.0, system=1.0, steal=0.0, idle=10.0)
        self.own_s = 2.0

    def cpu_times(self, percpu: bool) -> list[Any]:
        assert percpu
        return [SimpleNamespace(**vars(self.core)), SimpleNamespace(user=3.0, idle=4.0)]

    def Process(self) -> Any:  # noqa: N802 - its name in psutil
        def of(seconds: float) -> Any:
            times = SimpleNamespace(user=seconds, system=0.0, children_user=0.0, children_system=0.0)
            return SimpleNamespace(cpu_times=lambda: times)

        def gone() -> Any:
            raise RuntimeError("it ended meanwhile")

        this = of(self.own_s)
        this.children = lambda recursive: [of(1.0), SimpleNamespace(cpu_times=gone)]
        return this


@pytest.fixture
def clockwork(monkeypatch: pytest.MonkeyPatch) -> Clockwork:
    clockwork = Clockwork()
    monkeypatch.setattr("bcd_tuner.other_work.psutil", clockwork)
    monkeypatch.setattr("bcd_tuner.other_work._affinity", lambda n_cpus: set(range(n_cpus)))
    return clockwork


def test_only_what_others_do_counts(clockwork: Clockwork) -> None:
    work = OtherWork()
    assert (work.share, work.slowed) == (0.0, 1.0)
    with work.watched():
        clockwork.core.user += 3.0
        clockwork.own_s += 3.0
        clockwork.core.idle += 5.0
    assert (work.share, work.slowed) == (0.0, 1.0)
    clockwork.core.user += 100.0  # while nobody watches
    with work.watched():
        clockwork.core.user += 6.0
        clockwork.core.steal += 2.0
        clockwork.own_s += 1.0
    assert work.share == pytest.approx(7.0 / 16.0)
    assert work.slowed == pytest.approx(16.0 / 9.0)


def test_a_machine_that_has_no_time_left_slows_by_a_finite_factor(clockwork: Clockwork) -> None:
    work = OtherWork()
    with work.watched():
        clockwork.core.user += 5.0
    assert work.slowed == pytest.approx(20.0)


def test_the_real_one_counts_something() -> None:
    work = OtherWork()
    with work.watched():
        sum(range(100_000))
    assert 0.0 <= work.share <= 0.95
