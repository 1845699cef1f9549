"""What another release of TVM has left: keys, verdicts, priors and what becomes of schedules that do not replay any more."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tvm

from bcd_registry.model import Environment, Grade, PriorSource, RecordState, TuningRecord
from bcd_registry.registry import Registry
from bcd_registry.settings import load_settings, open_registry, upgrade_catalog
from bcd_registry.staleness import OnVersion, StalenessPolicy
from bcd_tuner.environment import current_environment
from bcd_tuner.plan import UNTUNED_SKETCH
from bcd_tuner.prepare import Prepared, prepare, read_and_lower
from bcd_tuner.replay import replay
from bcd_tuner.report import TuneReport
from bcd_tuner.session import TuneRequest, tune
from bcd_tuner.targets import resolve_target
from bcd_tuner.workers import WarmPool
from tests.tuner.upgraded_network import SEED, TARGET, TRIALS, spec_of, write_network

GOLDEN = Path(__file__).parent / "golden" / "tvm-0.26.0"
VERSION = "0.26.0"
N_TASKS = 9
N_AGREE = 9
"""Tasks of the network here, and those that had the same workload key under the older release."""


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_network(tmp_path_factory.mktemp("network") / "upgraded.onnx")


@pytest.fixture(scope="module")
def lowered(network: Path) -> Any:
    return read_and_lower(spec_of(network), resolve_target(TARGET), lambda phase, message: None)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A copy of the golden registry, brought to the revision of today."""
    home = Path(shutil.copytree(GOLDEN, tmp_path / "home"))
    upgrade_catalog(load_settings(home=home))
    return home


@pytest.fixture
def registry(home: Path) -> Iterator[Registry]:
    with open_registry(load_settings(home=home)) as registry:
        yield registry


def prepared(lowered: Any, registry: Registry, trials: int = TRIALS) -> Prepared:
    network, programs = lowered
    environment = current_environment(resolve_target(TARGET), WarmPool.default_measurement())
    return prepare(network, programs, registry, environment, trials=trials, fresh=False)


def records_of(registry: Registry) -> list[TuningRecord]:
    """All of them with their traces, less those that say that nothing beat the untuned program."""
    found = (registry.get_record(record.id) for record in registry.list_records(limit=1000))
    return [record for record in found if record.sketch != UNTUNED_SKETCH]


def environment_of(registry: Registry) -> Environment:
    [key] = {record.environment_key for record in registry.list_records(limit=1000)}
    return registry.get_environment(key)


def test_it_was_made_under_another_release(registry: Registry) -> None:
    assert environment_of(registry).fields["tvm"] == VERSION != tvm.__version__
    assert RecordState.PUBLISHED in {record.state for record in registry.list_records(limit=1000)}


def test_keys_agree_with_those_of_the_older_release(lowered: Any, registry: Registry) -> None:
    here = {task.workload.key for task in prepared(lowered, registry).tasks}
    there = {task.workload.key for task in registry.get_network("upgraded", "1").tasks}
    assert (len(here), len(here & there)) == (N_TASKS, N_AGREE)


def test_every_record_is_a_prior_and_the_reason_names_the_release(lowered: Any, registry: Registry) -> None:
    known = {record.workload_key for record in registry.list_records(limit=1000)}
    planned = [p for p in prepared(lowered, registry).planned if p.task.workload.key in known]
    assert len(planned) == N_AGREE
    for item in planned:
        assert item.match.grade is Grade.STALE
        assert f"tvm {VERSION} then, {tvm.__version__} now" in item.match.reason
        assert item.match.record is None


def test_schedules_of_the_older_release_replay(lowered: Any, registry: Registry) -> None:
    modules = {item.task.workload.key: item.mod for item in lowered[1].tasks}
    records = [record for record in records_of(registry) if record.workload_key in modules]
    assert len(records) > N_AGREE
    for record in records:
        assert replay(modules[record.workload_key], record.trace).trace is not None


def test_they_take_less_than_half_of_the_trials(lowered: Any, registry: Registry, tmp_path: Path) -> None:
    with open_registry(load_settings(home=tmp_path / "empty")) as empty:
        cold = sum(item.trials for item in prepared(lowered, empty).planned)
    warm = prepared(lowered, registry)
    assert sum(item.trials for item in warm.planned) <= cold / 2
    assert {item.prior for item in warm.planned if item.match.grade is Grade.STALE and item.priors} == {PriorSource.REGISTRY}


def policy_of(home: Path, on_version: OnVersion) -> Registry:
    settings = load_settings(home=home)
    return open_registry(dataclasses.replace(settings, staleness=StalenessPolicy(on_version=on_version)))


def test_refused_they_are_of_no_use(lowered: Any, home: Path) -> None:
    with policy_of(home, OnVersion.REFUSE) as registry:
        planned = prepared(lowered, registry).planned
    assert {item.match.grade for item in planned} == {Grade.COLD}
    assert any(f"tvm {VERSION} then" in item.match.reason for item in planned)


def test_accepted_they_are_results(lowered: Any, home: Path) -> None:
    with policy_of(home, OnVersion.ACCEPT) as registry:
        found = prepared(lowered, registry)
        published = {r.workload_key for r in registry.list_records(limit=1000) if r.state is RecordState.PUBLISHED}
    exact = {item.task.workload.key for item in found.planned if item.match.grade is Grade.EXACT}
    assert exact == published & {item.task.workload.key for item in found.planned}
    assert exact


def planted(registry: Registry) -> list[TuningRecord]:
    """The fastest of each workload, by far, with a trace that does not fit: of another workload, or of nothing."""
    environment, records = environment_of(registry), records_of(registry)
    registry.put_environment(environment)
    strange = [[["NoSuchInstruction", [], [], []]], []]
    by_workload = {record.workload_key: record for record in records}
    made = [
        dataclasses.replace(
            record,
            run_id="planted",
            state=RecordState.CHECKED,
            run_times_s=(1e-9,),
            depth=64,
            trace=strange if number % 2 else _other(records, record).trace,
        )
        for number, record in enumerate(by_workload.values())
    ]
    return registry.publish(made)


def _other(records: list[TuningRecord], record: TuningRecord) -> TuningRecord:
    """One of another workload, with as different a trace as there is."""
    others = [other for other in records if other.workload_key != record.workload_key]
    return max(others, key=lambda other: abs(len(other.trace[0]) - len(record.trace[0])))


@pytest.mark.parametrize("on_version", [OnVersion.PRIOR, OnVersion.ACCEPT])
def test_what_does_not_replay_is_quarantined_one_by_one(lowered: Any, home: Path, on_version: OnVersion) -> None:
    with policy_of(home, on_version) as registry:
        bad = planted(registry)
        found = prepared(lowered, registry)
        states = {record.id: registry.get_record(record.id) for record in bad}
        others = [record for record in registry.list_records(limit=1000) if record.id not in states]
    assert {record.state for record in states.values()} == {RecordState.QUARANTINED}
    assert all("does not replay" in record.reason for record in states.values())
    assert RecordState.QUARANTINED not in {record.state for record in others}
    served = {p.record.id for item in found.planned for p in item.priors}
    served |= {item.match.record.id for item in found.planned if item.match.record}
    assert served
    assert not served & set(states)


@pytest.mark.slow
def test_a_tune_goes_on_from_the_older_release(network: Path, registry: Registry) -> None:
    report: TuneReport = tune(TuneRequest(spec_of(network, trials=8), seed=SEED), registry, progress=lambda event: None)
    assert report.checked, report.notes
    assert report.saving.trials >= report.trials
    assert Grade.STALE in {task.grade for task in report.tasks}
    assert {record.state for record in records_of(registry)} <= {
        RecordState.MEASURED,
        RecordState.CHECKED,
        RecordState.PUBLISHED,
    }
