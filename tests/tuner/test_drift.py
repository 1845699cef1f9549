"""The test of a canary on simulated sessions: what it is said to do is what it does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcd_tuner.drift import LEVEL, TOLERATED, Finding, Machine, RecordVerdict, Remeasured, judge

STORED_RUNS, RUNS = 5, 7


@dataclass(frozen=True)
class Noise:
    """Of simulated latencies, as standard deviations of logarithms.

    Attributes:
        run: Between runs of one session.
        session: Of a program in a session.
        outliers: Share of runs that take up to three times as long.
    """

    run: float
    session: float
    outliers: float


QUIET, USUAL, ROUGH = Noise(0.005, 0.01, 0.01), Noise(0.02, 0.02, 0.05), Noise(0.05, 0.03, 0.08)
UNUSABLE = Noise(0.4, 0.03, 0.2)


class Simulated:
    """A network's records on a machine whose noise is known."""

    def __init__(self, n_records: int, noise: Noise, rng: np.random.Generator) -> None:
        self._noise, self._rng, self._n = noise, rng, n_records
        self._winner = np.exp(rng.uniform(-12, -5, n_records))
        self._untuned = self._winner * np.exp(rng.uniform(0, 3, n_records))
        stored, untuned_stored, self._now, self._untuned_now = (self._session() for _ in range(4))
        self._stored = [self._runs(t, STORED_RUNS) for t in self._winner * stored]
        self._untuned_stored = [float(np.median(self._runs(t, STORED_RUNS))) for t in self._untuned * untuned_stored]

    def checked(self, drift: Sequence[float] | float = 1.0, machine: float = 1.0) -> list[Remeasured]:
        """Every record measured again; once more repeats these runs, and neither what is stored nor the session.

        Args:
            drift: What the winners take now, as a multiple.
            machine: The same of everything.
        """
        winner = self._winner * self._now * machine * np.broadcast_to(drift, self._n)
        untuned = self._untuned * self._untuned_now * machine
        return [
            Remeasured(self._stored[i], self._runs(winner[i], RUNS), self._untuned_stored[i], self._runs(untuned[i], RUNS))
            for i in range(self._n)
        ]

    def _session(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.exp(self._rng.normal(0, self._noise.session, self._n))

    def _runs(self, latency_s: float, n: int) -> tuple[float, ...]:
        times = latency_s * np.exp(self._rng.normal(0, self._noise.run, n))
        slow = self._rng.random(n) < self._noise.outliers
        return tuple(float(t) for t in np.where(slow, times * self._rng.uniform(1, 3, n), times))


def drifted(findings: Sequence[Finding]) -> list[int]:
    return [i for i, finding in enumerate(findings) if finding.verdict is RecordVerdict.DRIFTED]


def machine_of(measured: Sequence[Remeasured]) -> Machine:
    machine, _ = judge(measured)
    assert machine is not None
    return machine


def confirmed(simulated: Simulated, drift: Sequence[float] | float = 1.0, machine: float = 1.0) -> tuple[list[int], list[int]]:
    """Records that drift was found for, and those for which it was found a second time."""
    first = simulated.checked(drift, machine)
    found = drifted(judge(first)[1])
    if not found:
        return [], []
    again = simulated.checked(drift, machine)
    both = [again[i] if i in found else first[i] for i in range(len(first))]
    return found, [i for i in drifted(judge(both)[1]) if i in found]


@pytest.mark.parametrize("noise", [QUIET, USUAL, ROUGH], ids=["quiet", "usual", "rough"])
@pytest.mark.parametrize(("n_records", "n_checks"), [(1, 1500), (3, 500), (12, 250), (40, 75)])
def test_false_alarms_are_rarer_than_one_check_in_a_hundred(n_records: int, n_checks: int, noise: Noise) -> None:
    rng = np.random.default_rng(n_records)
    alarms = [confirmed(Simulated(n_records, noise, rng), machine=rng.uniform(0.5, 2)) for _ in range(n_checks)]
    assert sum(bool(first) for first, _ in alarms) <= LEVEL * n_checks
    assert sum(len(second) for _, second in alarms) <= LEVEL * n_checks * n_records / 4


@pytest.mark.parametrize("noise", [QUIET, USUAL], ids=["quiet", "usual"])
@pytest.mark.parametrize("n_records", [1, 3, 12, 40])
def test_a_drift_by_half_is_found_nine_times_in_ten(n_records: int, noise: Noise) -> None:
    rng, n_checks = np.random.default_rng(n_records), 200
    drift = [1.5] + [1.0] * (n_records - 1)
    found = [confirmed(Simulated(n_records, noise, rng), drift)[1] for _ in range(n_checks)]
    assert sum(0 in records for records in found) > 0.9 * n_checks
    assert sum(records == [0] for records in found) > 0.9 * n_checks


@pytest.mark.parametrize("factor", [0.5, 2.0])
@pytest.mark.parametrize("n_records", [1, 2, 7, 30])
def test_a_machine_of_another_speed_moved_and_no_record_did(n_records: int, factor: float) -> None:
    rng = np.random.default_rng(7)
    for _ in range(20):
        measured = Simulated(n_records, USUAL, rng).checked(machine=factor)
        machine, findings = judge(measured)
        assert machine is not None
        assert machine.moved
        assert machine.low < factor < machine.high or machine.factor == pytest.approx(factor, rel=0.2)
        assert {f.verdict for f in findings} <= {RecordVerdict.STEADY, RecordVerdict.UNCLEAR}


def test_a_slow_machine_does_not_hide_what_drifted_on_it() -> None:
    rng = np.random.default_rng(0)
    measured = Simulated(10, USUAL, rng).checked([2.0, *[1.0] * 9], machine=2.0)
    machine, findings = judge(measured)
    assert machine is not None
    assert machine.factor == pytest.approx(2.0, rel=0.1)
    assert drifted(findings) == [0]
    assert findings[0].factor == pytest.approx(2.0, rel=0.2)


def test_an_idle_machine_has_not_moved() -> None:
    rng = np.random.default_rng(1)
    moved = [machine_of(Simulated(8, USUAL, rng).checked()).moved for _ in range(300)]
    assert sum(moved) <= 3


def test_a_stored_untuned_latency_that_was_disturbed_is_no_drift() -> None:
    """Its ratio is another now, but the winner is as fast as it was."""
    measured = Simulated(8, QUIET, np.random.default_rng(2)).checked()
    disturbed = replace(measured[0], untuned_stored_s=2 * (measured[0].untuned_stored_s or 0.0))
    assert drifted(judge([disturbed, *measured[1:]])[1]) == []


def test_what_got_faster_is_no_alarm() -> None:
    _, findings = judge(Simulated(6, USUAL, np.random.default_rng(3)).checked([0.5, *[1.0] * 5]))
    assert [f.verdict for f in findings] == [RecordVerdict.FASTER, *[RecordVerdict.STEADY] * 5]


def test_a_small_loss_is_steady_however_sure() -> None:
    still = Noise(1e-6, 1e-6, 0.0)
    _, findings = judge(Simulated(6, still, np.random.default_rng(4)).checked([1.05, *[1.0] * 5]))
    assert {f.verdict for f in findings} == {RecordVerdict.STEADY}


@pytest.mark.parametrize("n_records", [1, 10])
def test_where_noise_hides_everything_nothing_is_claimed(n_records: int) -> None:
    rng = np.random.default_rng(5)
    verdicts = [f.verdict for _ in range(30) for f in judge(Simulated(n_records, UNUSABLE, rng).checked())[1]]
    assert verdicts.count(RecordVerdict.UNCLEAR) > 0.9 * len(verdicts)
    assert RecordVerdict.DRIFTED not in verdicts


def test_what_all_winners_share_is_the_machines() -> None:
    """A second program on the cores slows those that use all of them, and not the untuned ones."""
    rng = np.random.default_rng(6)
    machine, findings = judge(Simulated(8, USUAL, rng).checked(1.6))
    assert machine is not None
    assert not machine.moved
    assert machine.tuned_factor == pytest.approx(1.6, rel=0.1)
    assert {f.verdict for f in findings} == {RecordVerdict.STEADY}
    machine, findings = judge(Simulated(8, USUAL, rng).checked([*[2.0] * 4, *[1.0] * 4]))
    assert machine is not None
    assert machine.tuned_factor == 1.0
    assert drifted(findings) == [0, 1, 2, 3]


def test_without_an_untuned_latency_the_machine_is_what_others_say() -> None:
    measured = Simulated(6, QUIET, np.random.default_rng(8)).checked([3.0, *[1.0] * 5], machine=2.0)
    alone = replace(measured[0], untuned_stored_s=None)
    assert drifted(judge([alone, *measured[1:]])[1]) == [0]
    assert [f.verdict for f in judge([alone])[1]] == [RecordVerdict.UNCLEAR]


def test_untuned_programs_gauge_the_machine_and_are_not_judged() -> None:
    gauge = Remeasured((), (), 1e-3, (2e-3,) * 5)
    machine, findings = judge([gauge] * 3)
    assert machine is not None
    assert (machine.moved, machine.n_programs) == (True, 3)
    assert machine.factor == pytest.approx(2.0)
    assert {f.verdict for f in findings} == {RecordVerdict.UNTUNED}


def test_nothing_measured_is_nothing_known() -> None:
    assert judge([]) == (None, [])
    assert judge([Remeasured((1e-3,), (), 1e-3, ())]) == (None, [Finding(RecordVerdict.UNCLEAR)])


@pytest.mark.parametrize("untuned_s", [0.0, -1.0, math.nan, math.inf, None])
def test_a_single_stored_run_is_enough(untuned_s: float | None) -> None:
    measured = Simulated(6, QUIET, np.random.default_rng(9)).checked()
    single = replace(measured[0], stored_s=measured[0].stored_s[:1], untuned_stored_s=untuned_s)
    _, findings = judge([single, *measured[1:]])
    assert findings[0].verdict is RecordVerdict.STEADY


LATENCIES = st.floats(1e-7, 10.0)
ANYTHING = LATENCIES | st.sampled_from([1e-300, 1e300])


@st.composite
def records(draw: st.DrawFn, latencies: st.SearchStrategy[float]) -> list[Remeasured]:
    times = st.lists(latencies, min_size=1, max_size=5).map(tuple)
    one = st.builds(Remeasured, times, times, st.none() | latencies, times)
    return draw(st.lists(one, max_size=8))


@given(records(ANYTHING))
def test_any_times_are_judged(measured: list[Remeasured]) -> None:
    machine, findings = judge(measured)
    assert len(findings) == len(measured)
    everything: list[Finding | Machine] = [*findings, *([machine] if machine else [])]
    for found in everything:
        if found.factor is not None:
            assert found.low is not None
            assert found.high is not None
            assert found.low <= found.factor <= found.high
    for finding in findings:
        if finding.verdict is RecordVerdict.DRIFTED:
            assert finding.factor is not None
            assert finding.factor > TOLERATED


@given(records(LATENCIES), st.sampled_from([0.25, 0.5, 2.0, 4.0]))
def test_the_speed_of_the_machine_changes_no_verdict(measured: list[Remeasured], factor: float) -> None:
    slower = [replace(m, now_s=scaled(m.now_s, factor), untuned_now_s=scaled(m.untuned_now_s, factor)) for m in measured]
    (before, was), (after, now) = judge(measured), judge(slower)
    assert [f.verdict for f in was] == [f.verdict for f in now]
    if before is not None and after is not None:
        assert math.log(after.factor / before.factor) == pytest.approx(math.log(factor), abs=1e-6)


@given(records(ANYTHING))
def test_order_does_not_matter(measured: list[Remeasured]) -> None:
    backwards = judge(measured[::-1])[1][::-1]
    assert [f.verdict for f in backwards] == [f.verdict for f in judge(measured)[1]]


def scaled(times: tuple[float, ...], factor: float) -> tuple[float, ...]:
    return tuple(t * factor for t in times)


def test_what_other_processes_explain_is_no_drift() -> None:
    measured = Simulated(6, USUAL, np.random.default_rng(10)).checked([2.0, 8.0, *[1.0] * 4])
    assert drifted(judge(measured)[1]) == [0, 1]
    _, findings = judge(measured, slowed=3.0)
    assert drifted(findings) == [1]
    assert {f.verdict for f in findings} == {RecordVerdict.DRIFTED, RecordVerdict.UNCLEAR}
