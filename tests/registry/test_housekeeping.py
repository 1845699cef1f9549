from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from bcd_registry.blobs.memory import MemoryBlobs
from bcd_registry.catalog.sql import SqlCatalog
from bcd_registry.errors import ConfigError, Conflict, NotFound
from bcd_registry.housekeeping import (
    GRACE_S,
    KEEP_MODELS,
    Garbage,
    collect_garbage,
    find_garbage,
    miss_cause,
    read_statistics,
)
from bcd_registry.model import BlobInfo, Grade, RecordState, TuningRecord, Workload
from bcd_registry.registry import Registry
from bcd_registry.settings import load_settings, open_registry
from bcd_registry.testing.values import (
    ENVIRONMENT,
    make_environment,
    make_network,
    make_record,
    make_refutation,
    make_run,
    make_snapshot,
    make_workload,
)
from infra.local_stack import LocalStack

OWN = make_workload("own", cluster="c", extents=(16, 64))
SIBLING = make_workload("sibling", cluster="c", extents=(16, 128))
COUSIN = make_workload("cousin", cluster="d", anchor="c", extents=(16, 64))


class Watched(MemoryBlobs):
    """Blobs with something that happens once at the end of the next listing."""

    after_listing: Callable[[], object] | None = None

    def iter_blobs(self) -> Iterator[BlobInfo]:
        yield from super().iter_blobs()
        then = self.after_listing
        self.after_listing = None
        if then is not None:
            then()


class WatchedCatalog(SqlCatalog):
    """A catalog with something that happens once when the names have been read."""

    after_names: Callable[[], object] | None = None
    after_choice: Callable[[], object] | None = None

    def beaten_records(self, keep: int) -> list[str]:
        beaten = super().beaten_records(keep)
        then, self.after_choice = self.after_choice, None
        if then is not None:
            then()
        return beaten

    def named_blobs(self) -> set[str]:
        names = super().named_blobs()
        then = self.after_names
        self.after_names = None
        if then is not None:
            then()
        return names


@dataclasses.dataclass
class House:
    """A registry whose time passes when it is told."""

    registry: Registry
    catalog: WatchedCatalog
    blobs: Watched
    now: float = 1e9

    def find(self, **options: Any) -> Garbage:
        return find_garbage(self.registry, clock=lambda: self.now, **options)

    def collect(self, **options: Any) -> Garbage:
        return collect_garbage(self.registry, clock=lambda: self.now, **options)

    def digests(self) -> set[str]:
        return {blob.digest for blob in self.blobs.iter_blobs()}

    def ids(self) -> set[str]:
        return {record.id for record in self.registry.list_records(limit=1000)}


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with WatchedCatalog.open_file(tmp_path / "catalog.db") as catalog:
        blobs = Watched(clock=lambda: made.now)
        made = House(Registry(catalog, blobs, clock=lambda: made.now), cast(WatchedCatalog, catalog), blobs)
        yield made


@pytest.fixture
def key(house: House) -> str:
    house.registry.put_workloads([OWN, SIBLING, COUSIN])
    return house.registry.put_environment(ENVIRONMENT)


def measured(workload: Workload, key: str, n: int = 0, **changes: Any) -> TuningRecord:
    """A record whose trace, decisions and latency (1 + n ms) are its own."""
    fields: dict[str, Any] = {
        "trace": [workload.key, n],
        "decisions": (("SampleCategorical", n),),
        "run_times_s": ((n + 1) * 1e-3,),
    }
    return make_record(workload, key, **{**fields, **changes})


def keep(house: House, workload: Workload, key: str, numbers: Sequence[int], **changes: Any) -> list[TuningRecord]:
    records = [measured(workload, key, n, **changes) for n in numbers]
    house.registry.keep(records)
    return records


def test_beaten_records_and_their_traces_go_and_the_best_stay(house: House, key: str) -> None:
    own, sibling = keep(house, OWN, key, range(12)), keep(house, SIBLING, key, range(3))
    house.now += GRACE_S + 1
    found = house.find(keep=8)
    assert set(found.records) == {record.id for record in own[8:]}
    assert (found.blobs, found.n_waiting) == ((), 0)
    assert len(house.ids()) == len(house.digests()) == 15
    went = house.collect(keep=8)
    assert set(went.records) == set(found.records)
    assert len(went.blobs) == 4
    assert (went.blob_bytes, went.trace_bytes) == (found.trace_bytes, 0)
    assert house.ids() == {record.id for record in (*own[:8], *sibling)}
    assert house.digests() == house.registry.named_blobs()
    for record in (*own[:8], *sibling):
        assert house.registry.get_record(record.id) == record
    assert house.collect(keep=8) == Garbage((), (), 0)


def test_each_environment_keeps_its_own(house: House, key: str) -> None:
    other = house.registry.put_environment(make_environment(tvm="0.26.0"))
    keep(house, OWN, key, range(3))
    keep(house, OWN, other, range(3))
    assert len(house.find(keep=2).records) == 2


def test_a_published_record_is_never_beaten_by_measured_ones(house: House, key: str) -> None:
    slow = measured(OWN, key, 50, state=RecordState.CHECKED)
    house.registry.publish([slow])
    keep(house, OWN, key, range(10))
    house.collect(keep=1)
    assert house.ids() == {slow.id}


def test_what_a_pinned_network_uses_stays_until_it_is_unpinned(house: House, key: str) -> None:
    house.registry.register_network(make_network("ocr", "1", (OWN,)))
    house.registry.pin_network("ocr", "1")
    keep(house, OWN, key, range(12))
    keep(house, SIBLING, key, range(12))
    house.now += GRACE_S + 1
    house.collect(keep=2)
    assert len(house.ids()) == 12 + 2
    assert len(house.digests()) == 12 + 2
    with pytest.raises(Conflict, match="pinned"):
        house.registry.delete_network("ocr", "1")
    assert house.registry.list_pins() == {("ocr", "1")}
    house.registry.unpin_network("ocr", "1")
    house.collect(keep=2)
    assert len(house.ids()) == 2 + 2
    house.registry.delete_network("ocr", "1")
    with pytest.raises(NotFound):
        house.registry.get_network("ocr", "1")


def test_a_blob_without_a_name_stays_for_the_grace_time(house: House, key: str) -> None:
    keep(house, OWN, key, range(2))
    house.registry.add_cost_model(make_snapshot())
    stray = house.blobs.put(b"a writer was killed before its row")
    house.now += GRACE_S - 1
    assert house.collect() == Garbage((), (), n_waiting=1)
    house.now += 2
    (found,) = house.find().blobs
    assert found.digest == stray
    assert stray in house.digests()
    assert house.collect().blobs == (found,)
    assert stray not in house.digests()
    assert len(house.digests()) == 4


def test_a_blob_that_gets_its_row_after_the_listing_stays(house: House, key: str) -> None:
    record = measured(OWN, key)
    house.registry.keep([record])
    house.registry.remove_records([record.id])
    house.now += GRACE_S + 1
    house.blobs.after_listing = lambda: house.registry.keep([record])
    assert house.collect().blobs == ()
    assert house.registry.get_record(record.id) == record


def test_a_blob_that_gets_its_row_after_the_names_were_read_stays(house: House, key: str) -> None:
    record = measured(OWN, key)
    house.registry.keep([record])
    house.registry.remove_records([record.id])
    house.now += GRACE_S + 1
    house.catalog.after_names = lambda: house.registry.keep([record])
    assert house.collect() == Garbage((), (), n_waiting=1)
    assert house.registry.get_record(record.id) == record


def test_a_new_blob_whose_row_is_still_to_come_stays(house: House, key: str) -> None:
    house.catalog.after_names = lambda: house.blobs.put(b"its row comes next")
    assert house.collect() == Garbage((), (), n_waiting=1)


def test_what_is_pinned_after_it_was_chosen_stays(house: House, key: str) -> None:
    house.registry.register_network(make_network("ocr", "1", (OWN,)))
    own, sibling = keep(house, OWN, key, range(4)), keep(house, SIBLING, key, range(4))
    house.catalog.after_choice = lambda: house.registry.pin_network("ocr", "1")
    assert set(house.collect(keep=1).records) == {record.id for record in sibling[1:]}
    assert house.ids() == {record.id for record in (*own, sibling[0])}


def test_what_is_published_after_it_was_chosen_stays(house: House, key: str) -> None:
    own = keep(house, OWN, key, range(4))
    slowest = own[3].with_state(RecordState.CHECKED)
    house.catalog.after_choice = lambda: house.registry.publish([slowest])
    assert set(house.collect(keep=1).records) == {own[1].id, own[2].id}
    assert house.ids() == {own[0].id, slowest.id}
    assert house.registry.get_record(slowest.id).state is RecordState.PUBLISHED


def test_of_the_cost_models_of_a_target_the_newest_stay(house: House, key: str) -> None:
    targets = ('{"kind":"llvm"}', '{"kind":"cuda"}')
    for target in targets:
        for i in range(KEEP_MODELS + 2):
            booster = f"booster {target} {i}".encode()
            house.registry.add_cost_model(make_snapshot(target=target, booster=booster, created_at=1.0 + i))
    house.now += GRACE_S + 1
    found = house.find()
    assert (len(found.cost_models), found.blobs) == (4, ())
    assert found.model_bytes > 4 * len("booster")
    went = house.collect()
    assert set(went.cost_models) == set(found.cost_models)
    assert (len(went.blobs), went.model_bytes) == (4, 0)
    assert went.as_json()["cost_models"] == list(went.cost_models)
    assert house.registry.counts()["cost_models"] == 2 * KEEP_MODELS
    for target in targets:
        newest = house.registry.latest_cost_model(target)
        assert newest is not None
        assert newest.created_at == KEEP_MODELS + 2
    assert house.collect() == Garbage((), (), 0)


def test_what_was_refuted_of_a_removed_record_goes_with_it(house: House, key: str) -> None:
    records = keep(house, SIBLING, key, range(2))
    house.registry.refute([make_refutation(record, OWN) for record in records])
    house.collect(keep=1)
    assert house.registry.counts()["refutations"] == 1


@pytest.mark.parametrize(("options", "message"), [({"keep": 0}, "cannot be kept"), ({"grace_s": 3600.0}, "too short")])
def test_what_would_not_be_safe_is_refused(house: House, key: str, options: dict[str, Any], message: str) -> None:
    keep(house, OWN, key, range(12))
    for call in (house.find, house.collect):
        with pytest.raises(ConfigError, match=message) as caught:
            call(**options)
        assert caught.value.hint
    assert len(house.ids()) == 12


def test_bytes_of_many_traces_are_estimated(house: House, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(house, OWN, key, range(40))
    exact = house.find(keep=1).trace_bytes
    monkeypatch.setattr("bcd_registry.housekeeping._LOOKED_AT", 10)
    assert house.find(keep=1).trace_bytes == pytest.approx(exact, rel=0.1)


def test_the_stores_of_a_team_are_kept_alike(
    stack: LocalStack, postgres_url: str, s3_prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**stack.environment, "BCD_DATABASE_URL": postgres_url, "BCD_BLOBS_URL": s3_prefix}.items():
        monkeypatch.setenv(name, value)
    with open_registry(load_settings(home=tmp_path / "home")) as registry:
        registry.put_workloads([OWN, SIBLING])
        registry.register_network(make_network("ocr", "1", (SIBLING,)))
        registry.pin_network("ocr", "1")
        key = registry.put_environment(ENVIRONMENT)
        registry.keep([measured(workload, key, n) for workload in (OWN, SIBLING) for n in range(6)])
        registry.add_cost_model(make_snapshot())
        young = collect_garbage(registry, keep=4)
        assert (len(young.records), young.blobs, young.n_waiting) == (2, (), 2)
        went = collect_garbage(registry, keep=4, clock=lambda: time.time() + GRACE_S + 60.0)
        assert (went.records, len(went.blobs), went.n_waiting) == ((), 2, 0)
        assert {blob.digest for blob in registry.iter_blobs()} == registry.named_blobs()
        found = read_statistics(registry)
        assert (found.rows["measured"], found.rows["pins"], found.n_blobs) == (10, 1, 12)
        assert all(registry.get_record(record.id).trace for record in registry.list_records())


def task(grade: Grade, note: str = "") -> dict[str, Any]:
    return {"grade": grade.value, "note": note, "trials": 4}


def report(*tasks: dict[str, Any], seconds: float | None, trials: int = 10) -> dict[str, Any]:
    return {"schema": 1, "tasks": list(tasks), "saving": {"trials": trials, "seconds": seconds, "basis": ""}}


def test_statistics_add_up_what_the_reports_say(house: House, key: str) -> None:
    house.registry.publish([measured(OWN, key, state=RecordState.CHECKED)])
    keep(house, OWN, key, (1, 2))
    house.registry.register_network(make_network("ocr", "1", (OWN, SIBLING)))
    house.registry.pin_network("ocr", "1")
    house.registry.add_cost_model(make_snapshot())
    shallow = "searched for 8 trials, 32 asked; its search ended early"
    first = report(task(Grade.COLD, "no record of this workload, a sibling or its main block"), seconds=None, trials=0)
    second = report(task(Grade.EXACT, "published at 1 ms"), task(Grade.EXACT), task(Grade.STALE, shallow), seconds=42.5)
    house.registry.put_run(make_run("a", report=first))
    house.registry.put_run(make_run("b", report=second))
    house.registry.put_run(make_run("c", report={}))
    found = read_statistics(house.registry)
    rows = found.rows
    assert (rows["published"], rows["measured"], rows["workloads"], rows["clusters"]) == (1, 2, 3, 2)
    assert (rows["networks"], rows["pins"], rows["cost_models"], rows["runs"]) == (1, 1, 1, 3)
    assert (found.n_blobs, found.blob_bytes) == (5, sum(blob.size for blob in house.blobs.iter_blobs()))
    assert list(found.grades.items()) == [("exact", 2), ("stale", 1), ("cold", 1)]
    assert found.causes == {"nothing like it known": 1, "searched less deep": 1}
    assert (found.saved_trials, found.saved_s, found.runs_without_estimate) == (10, 42.5, 2)
    assert (found.runs_read, found.trials, found.tuning_s) == (3, 192, 37.5)
    assert found.as_json()["saved"]["estimated"] is True
    assert read_statistics(house.registry, n_runs=1).runs_read == 1


@pytest.mark.parametrize("broken", [None, [], "text", {"tasks": None, "saving": 3}, {"tasks": [None, 7, {}], "saving": {}}])
def test_a_report_of_another_form_is_no_trouble(house: House, broken: Any) -> None:
    house.registry.put_run(make_run("a", report=broken))
    found = read_statistics(house.registry)
    assert (found.runs_read, found.saved_trials, found.saved_s) == (1, 0, 0.0)


def test_an_empty_registry_has_statistics(house: House) -> None:
    found = read_statistics(house.registry)
    assert (found.n_blobs, found.grades, found.causes, found.saved_s) == (0, {}, {}, 0.0)
    assert set(found.rows.values()) == {0}


def lookup_note(house: House, workload: Workload, depth: int = 32, **environment: Any) -> str:
    (match,) = house.registry.lookup([workload], make_environment(**environment), {workload.key: depth})
    assert match.grade is not Grade.EXACT
    return match.reason


def test_causes_are_read_from_what_lookups_say(house: House, key: str) -> None:
    """The phrases are `lookup`'s own: this fails when one of them changes."""
    assert miss_cause(lookup_note(house, OWN)) == "nothing like it known"
    house.registry.publish([measured(COUSIN, key, state=RecordState.CHECKED)])
    assert miss_cause(lookup_note(house, OWN)) == "only its main block known"
    sibling = measured(SIBLING, key, state=RecordState.CHECKED)
    house.registry.publish([sibling])
    assert miss_cause(lookup_note(house, OWN)) == "only siblings known"
    house.registry.refute([make_refutation(sibling, OWN)])
    assert miss_cause(lookup_note(house, OWN)) == "its priors misled"
    assert miss_cause(lookup_note(house, SIBLING, 64)) == "searched less deep"
    assert miss_cause(lookup_note(house, SIBLING, tvm="0.28.0")) == "other tvm: a prior only"
    assert miss_cause(lookup_note(house, SIBLING, measurement={"repeats": 9})) == "other measurement: a prior only"
    assert miss_cause(lookup_note(house, SIBLING, isa=["sve"])) == "other isa: not usable"
    assert miss_cause(lookup_note(house, SIBLING, target={"kind": "llvm", "mcpu": "skylake"})) == "other target: not usable"


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"state": RecordState.MEASURED, "depth": 0}, "measured, not published"),
        ({"state": RecordState.CHECKED, "depth": 0}, "search was cut short"),
    ],
)
def test_causes_of_own_records(house: House, key: str, changes: dict[str, Any], cause: str) -> None:
    record = measured(OWN, key, **changes)
    if record.state is RecordState.CHECKED:
        house.registry.publish([record])
    else:
        house.registry.keep([record])
    assert miss_cause(lookup_note(house, OWN)) == cause


def test_causes_that_no_lookup_says() -> None:
    assert miss_cause("the registry was not asked (--fresh)") == "the registry was not asked"
    assert miss_cause("") == "not known"


@pytest.mark.parametrize(
    ("note", "cause"),
    [
        ("measured 120 d ago, older than 90 d", "too old: a prior only"),
        ("drifted: 1 ms then, 1.2 ms now; searched for 16 trials, 32 asked", "drifted: a prior only"),
        ("no record of this workload; 1 record ignored: tvm 0.26.0 then, 0.27.0 now", "other tvm: not usable"),
    ],
)
def test_causes_by_policy(note: str, cause: str) -> None:
    assert miss_cause(note) == cause


def test_what_was_taken_back_stays_until_it_is_restored_and_beaten(house: House, key: str) -> None:
    best, second, slow = keep(house, OWN, key, range(3))
    event = house.registry.invalidate([best.id], "measured beside a backup")
    house.now += GRACE_S + 1
    assert house.collect(keep=1).records == (slow.id,)
    assert house.ids() == {best.id, second.id}
    assert house.digests() == house.registry.named_blobs()
    house.registry.restore(event.id, "it was not")
    assert house.registry.get_record(best.id) == best
    assert house.collect(keep=1).records == (second.id,)
