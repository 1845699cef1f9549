"""What every `Catalog` does. The names of the tests say it."""

# ruff: noqa: D102

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from bcd_registry.errors import Conflict, NotFound
from bcd_registry.model import Lease, RecordState, Refutation, Relative, TuningRecord, Workload
from bcd_registry.ports import Catalog
from bcd_registry.staleness import environment_key

from .history_contract import DIGEST, HistoryContract, stored
from .values import (
    ENVIRONMENT,
    hex_of,
    make_environment,
    make_event,
    make_network,
    make_record,
    make_refutation,
    make_run,
    make_snapshot,
    make_workload,
)

LONG_S = 1000.0
EXPIRED_S = 0.0


def taken(lease: Lease | None) -> Lease:
    """The lease, which must not be None."""
    assert lease is not None
    return lease


class CatalogContract(HistoryContract):
    """Inherit it and give the fixture `catalog`, an empty one."""

    @pytest.fixture
    def prior(self, catalog: Catalog, workload: Workload, environment: str) -> TuningRecord:
        """A record that is stored."""
        record = make_record(workload, environment)
        catalog.add_records([record], [DIGEST])
        return record

    def test_environments(self, catalog: Catalog) -> None:
        key = catalog.put_environment(ENVIRONMENT)
        assert key == environment_key(ENVIRONMENT)
        assert catalog.get_environment(key).as_json() == ENVIRONMENT.as_json()
        with pytest.raises(NotFound):
            catalog.get_environment(hex_of("none"))

    def test_an_environment_keeps_its_first_notes(self, catalog: Catalog) -> None:
        key = catalog.put_environment(ENVIRONMENT)
        assert catalog.put_environment(make_environment(calibration_ms=99.0)) == key
        assert catalog.get_environment(key).fields["calibration_ms"] == ENVIRONMENT.fields["calibration_ms"]

    def test_environments_by_their_keys(self, catalog: Catalog) -> None:
        here, there = ENVIRONMENT, make_environment(tvm="0.26.0")
        one, two = catalog.put_environment(here), catalog.put_environment(there)
        found = catalog.get_environments([two, hex_of("none"), one, two])
        assert {key: environment.as_json() for key, environment in found.items()} == {one: here.as_json(), two: there.as_json()}
        assert catalog.get_environments([]) == {}

    def test_workloads(self, catalog: Catalog) -> None:
        one, two = make_workload("one"), make_workload("two", extents=())
        catalog.put_workloads([one, two, one])
        catalog.put_workloads([two])
        catalog.put_workloads([])
        assert catalog.get_workloads([two.key, hex_of("none"), one.key]) == {one.key: one, two.key: two}
        assert catalog.get_workloads([]) == {}

    def test_networks(self, catalog: Catalog) -> None:
        workloads = tuple(make_workload(f"w{i}") for i in range(3))
        catalog.put_workloads(workloads)
        first, second = make_network("ocr", "1", workloads), make_network("ocr", "2", (workloads[2], workloads[2]), shapes={})
        other = make_network("det", "", ())
        for network in (second, first, other):
            catalog.put_network(network)
        assert catalog.list_networks() == [other, first, second]
        assert catalog.get_network("ocr", "2") == second
        with pytest.raises(NotFound, match="ocr"):
            catalog.get_network("ocr", "3")

    def test_putting_a_network_replaces_that_version_only(self, catalog: Catalog) -> None:
        workloads = tuple(make_workload(f"w{i}") for i in range(3))
        catalog.put_workloads(workloads)
        old, other = make_network("ocr", "1", workloads), make_network("ocr", "2", workloads)
        new = make_network("ocr", "1", workloads[1:], source="new.onnx")
        for network in (old, other, new):
            catalog.put_network(network)
        assert catalog.list_networks() == [new, other]

    def test_a_network_with_an_unknown_workload_changes_nothing(self, catalog: Catalog, workload: Workload) -> None:
        old = make_network("ocr", "1", (workload,))
        catalog.put_network(old)
        with pytest.raises(NotFound):
            catalog.put_network(make_network("ocr", "1", (workload, make_workload("unknown"))))
        assert catalog.list_networks() == [old]

    def test_records_read_back_without_their_trace(self, catalog: Catalog, workload: Workload, environment: str) -> None:
        record = make_record(workload, environment, parent_id=hex_of("parent"), reason="why", run_times_s=(0.1 + 0.2, 1e-9))
        bare = make_record(workload, environment, run_id="run-2", untuned_s=None, decisions=())
        catalog.add_records([record, bare], [DIGEST, hex_of("other")])
        catalog.add_records([], [])
        assert catalog.get_record(record.id) == (stored(record), DIGEST)
        assert catalog.get_record(bare.id) == (stored(bare), hex_of("other"))

    def test_adding_again_is_a_success(self, catalog: Catalog, workload: Workload, environment: str) -> None:
        record = make_record(workload, environment)
        catalog.add_records([record, record], [DIGEST, DIGEST])
        catalog.add_records([record], [DIGEST])
        assert catalog.list_records() == [(stored(record), DIGEST)]

    @pytest.mark.parametrize("old", list(RecordState))
    @pytest.mark.parametrize("new", list(RecordState))
    def test_a_record_never_goes_back(
        self, catalog: Catalog, workload: Workload, environment: str, old: RecordState, new: RecordState
    ) -> None:
        first = make_record(workload, environment, state=old, trials=1)
        second = make_record(workload, environment, state=new, trials=2, run_times_s=(5e-4,))
        catalog.add_records([first], [DIGEST])
        catalog.add_records([second], [hex_of("second")])
        states = list(RecordState)
        replaced = states.index(new) >= states.index(old)
        expected = (stored(second), hex_of("second")) if replaced else (stored(first), DIGEST)
        assert catalog.get_record(first.id) == expected

    @pytest.mark.parametrize("missing", ["workload", "environment"])
    def test_a_batch_appears_whole_or_not_at_all(
        self, catalog: Catalog, workload: Workload, environment: str, missing: str
    ) -> None:
        good = make_record(workload, environment)
        bad = make_record(make_workload("unknown"), environment)
        if missing == "environment":
            bad = make_record(workload, hex_of("unknown"))
        with pytest.raises(NotFound):
            catalog.add_records([good, bad], [DIGEST, DIGEST])
        assert catalog.list_records() == []

    def test_setting_states(self, catalog: Catalog, workload: Workload, environment: str) -> None:
        records = [make_record(workload, environment, run_id=f"run-{i}", created_at=10.0 - i) for i in range(3)]
        catalog.add_records(records, [DIGEST] * 3)
        catalog.set_record_states([records[0].id, records[2].id], RecordState.QUARANTINED, "drifted")
        catalog.set_record_states([], RecordState.QUARANTINED, "nothing")
        states = [(record.state, record.reason) for record, _ in catalog.list_records()]
        assert states == [("quarantined", "drifted"), ("measured", ""), ("quarantined", "drifted")]

    def test_setting_the_state_of_an_unknown_record_sets_none(
        self, catalog: Catalog, workload: Workload, environment: str
    ) -> None:
        record = make_record(workload, environment)
        catalog.add_records([record], [DIGEST])
        with pytest.raises(NotFound, match=hex_of("none")[:12]):
            catalog.set_record_states([record.id, hex_of("none")], RecordState.QUARANTINED, "")
        assert catalog.get_record(record.id)[0].state is RecordState.MEASURED

    def test_finding_by_workload_cluster_and_anchor(self, catalog: Catalog, environment: str) -> None:
        own = make_workload("own", cluster="c", anchor="a")
        sibling = make_workload("sibling", cluster="c", anchor="a")
        cousin = make_workload("cousin", cluster="d", anchor="a")
        stranger = make_workload("stranger")
        all_of_them = [own, sibling, cousin, stranger]
        catalog.put_workloads(all_of_them)
        catalog.add_records([make_record(w, environment) for w in all_of_them], [DIGEST] * 4)

        def found(**by: list[str]) -> set[str]:
            return {record.workload_key for record, _ in catalog.find_records(**by)}  # type: ignore[arg-type]

        assert found() == set()
        assert found(workloads=[own.key]) == {own.key}
        assert found(clusters=[own.cluster]) == {own.key, sibling.key}
        assert found(anchors=[own.anchor]) == {own.key, sibling.key, cousin.key}
        assert found(workloads=[stranger.key], clusters=[cousin.cluster]) == {stranger.key, cousin.key}

    def test_finding_takes_the_best_of_each_workload_and_environment(
        self, catalog: Catalog, workload: Workload, environment: str
    ) -> None:
        other = catalog.put_environment(make_environment(tvm="0.26.0"))
        records = [
            make_record(workload, key, run_id=f"{state}-{ms}", state=state, run_times_s=(ms * 1e-3,))
            for key in (environment, other)
            for state in RecordState
            for ms in (3, 1, 2)
        ]
        catalog.add_records(records, [DIGEST] * len(records))
        found = [record for record, _ in catalog.find_records(workloads=[workload.key], per_workload=4)]
        for key in (environment, other):
            runs = [record.run_id for record in found if record.environment_key == key]
            assert runs == ["published-1", "published-2", "published-3", "checked-1"]
        everything = catalog.find_records(workloads=[workload.key], per_workload=100)
        assert len(everything) == 18
        assert all(record.state is not RecordState.QUARANTINED for record, _ in everything)

    def test_finding_what_misled_a_cluster(self, catalog: Catalog, environment: str) -> None:
        sibling, cousin, other, misled = (
            make_workload(name, cluster=cluster, anchor="a")
            for name, cluster in (("sibling", "c"), ("cousin", "d"), ("other", "c"), ("misled", "c"))
        )
        catalog.put_workloads([sibling, cousin, other, misled])
        records = [make_record(w, environment, run_id=f"run-{i}") for w in (sibling, cousin, other) for i in range(2)]
        catalog.add_records(records, [DIGEST] * 6)
        catalog.add_refutations([make_refutation(records[0], misled), make_refutation(records[2], misled)])
        catalog.add_refutations([make_refutation(records[4], cousin)])
        found = [record.workload_key for record, _ in catalog.find_records(refuted_in=[misled.cluster])]
        assert Counter(found) == {sibling.key: 2, cousin.key: 2}
        both = catalog.find_records(workloads=[other.key], refuted_in=[misled.cluster], per_workload=1)
        assert {record.workload_key for record, _ in both} == {sibling.key, cousin.key, other.key}
        assert catalog.find_records(refuted_in=[hex_of("none")]) == []

    def test_relatives_are_workloads_with_usable_records(self, catalog: Catalog, environment: str) -> None:
        elsewhere = catalog.put_environment(make_environment(tvm="0.26.0"))
        own = make_workload("own", cluster="c", anchor="a")
        sibling = make_workload("sibling", cluster="c", anchor="a", extents=(1, 2))
        cousin, stranger = make_workload("cousin", anchor="a"), make_workload("stranger")
        bad, bare = make_workload("bad", cluster="c"), make_workload("bare", cluster="c")
        catalog.put_workloads([own, sibling, cousin, stranger, bad, bare])
        records = [make_record(workload, environment) for workload in (own, sibling, cousin, stranger, bad)]
        records += [make_record(own, elsewhere, run_id=f"run-{i}") for i in range(12)]
        catalog.add_records(records, [DIGEST] * len(records))
        catalog.set_record_states([records[4].id, records[5].id], RecordState.QUARANTINED, "")

        def found(**by: list[str]) -> list[Relative]:
            return sorted(catalog.find_relatives(**by), key=lambda relative: relative.workload.key)

        def expected(*workloads: Workload) -> list[Relative]:
            counts = {workload.key: {environment: 1} for workload in workloads} | {own.key: {environment: 1, elsewhere: 11}}
            light = [dataclasses.replace(workload, description="") for workload in workloads]
            return sorted((Relative(w, counts[w.key]) for w in light), key=lambda relative: relative.workload.key)

        assert found() == []
        assert found(clusters=[own.cluster, bare.cluster]) == expected(own, sibling)
        assert found(anchors=[own.anchor]) == expected(own, sibling, cousin)
        assert found(clusters=[stranger.cluster, own.cluster], anchors=[own.anchor]) == expected(own, sibling, cousin, stranger)

    def test_listing_records(self, catalog: Catalog, environment: str) -> None:
        workloads = [make_workload(f"w{i}") for i in range(3)]
        catalog.put_workloads(workloads)
        catalog.put_network(make_network("ocr", "1", tuple(workloads[:2])))
        records = [make_record(w, environment, created_at=100.0 + i) for i, w in enumerate(workloads)]
        catalog.add_records(records, [DIGEST] * 3)
        listed = [stored(record) for record in reversed(records)]
        assert [record for record, _ in catalog.list_records()] == listed
        assert [record for record, _ in catalog.list_records(limit=1)] == listed[:1]
        assert [record for record, _ in catalog.list_records(network=("ocr", "1"))] == listed[1:]
        assert catalog.list_records(network=("ocr", "2")) == []
        assert [record for record, _ in catalog.list_records(workload=workloads[1].key[:10])] == [listed[1]]
        assert catalog.list_records(workload="%") == []

    def test_a_record_by_the_beginning_of_its_id(self, catalog: Catalog, workload: Workload, environment: str) -> None:
        records = [make_record(workload, environment, run_id=f"run-{i}") for i in range(40)]
        catalog.add_records(records, [DIGEST] * 40)
        for record in records[:3]:
            assert catalog.get_record(record.id[:12])[0].id == record.id
            assert catalog.get_record(record.id[:12].upper())[0].id == record.id
        digit, _ = Counter(record.id[0] for record in records).most_common(1)[0]
        with pytest.raises(NotFound, match="more than one"):
            catalog.get_record(digit)
        for unknown in ("none", "%", "f" * 64, records[0].id + "0"):
            with pytest.raises(NotFound):
                catalog.get_record(unknown)

    def test_refutations_are_found_by_cluster_newest_first(self, catalog: Catalog, prior: TuningRecord) -> None:
        misled = [make_workload(name, cluster=cluster) for name, cluster in (("x", "c"), ("y", "c"), ("z", "d"))]
        catalog.put_workloads(misled)
        near = make_refutation(prior, misled[0], distance=0.1 + 0.2, ratio=1.25, created_at=1.0)
        far = make_refutation(prior, misled[1], distance=math.inf, ratio=math.inf, run_id="run-2", created_at=2.0)
        other = make_refutation(prior, misled[2], distance=0.0, created_at=3.0)
        catalog.add_refutations([near, far, other])
        catalog.add_refutations([])
        assert catalog.find_refutations([misled[0].cluster, hex_of("none")]) == [far, near]
        assert catalog.find_refutations([w.cluster for w in misled]) == [other, far, near]
        assert catalog.find_refutations([]) == []

    def test_a_refutation_replaces_that_of_the_same_record_workload_and_environment(
        self, catalog: Catalog, workload: Workload, prior: TuningRecord
    ) -> None:
        elsewhere = catalog.put_environment(make_environment(cores=8))
        other_workload = make_workload("other", cluster="a")
        other_record = dataclasses.replace(prior, run_id="other")
        catalog.put_workloads([other_workload])
        catalog.add_records([other_record], [DIGEST])
        old = make_refutation(prior, workload, created_at=9.0)
        others = [
            make_refutation(prior, workload, environment_key=elsewhere, created_at=8.0),
            make_refutation(prior, other_workload, created_at=7.0),
            make_refutation(other_record, workload, created_at=6.0),
        ]
        new = dataclasses.replace(old, distance=0.5, ratio=3.0, run_id="new", created_at=9.5)
        catalog.add_refutations([old, *others, old])
        assert catalog.find_refutations([workload.cluster]) == [old, *others]
        catalog.add_refutations([new])
        assert catalog.find_refutations([workload.cluster]) == [new, *others]

    @pytest.mark.parametrize("unknown", ["record_id", "workload_key", "environment_key"])
    def test_refutations_of_what_is_not_stored_are_refused_whole(
        self, catalog: Catalog, workload: Workload, prior: TuningRecord, unknown: str
    ) -> None:
        good = make_refutation(prior, workload)
        bad: Refutation = dataclasses.replace(good, **{unknown: hex_of("unknown")})  # type: ignore[arg-type]
        with pytest.raises(NotFound):
            catalog.add_refutations([good, bad])
        assert catalog.find_refutations([workload.cluster]) == []

    def test_forgetting_refutations(self, catalog: Catalog, workload: Workload, prior: TuningRecord) -> None:
        other = dataclasses.replace(prior, run_id="other")
        sibling = make_workload("sibling", cluster="a")
        catalog.put_workloads([sibling])
        catalog.add_records([other], [DIGEST])
        kept = make_refutation(other, workload)
        catalog.add_refutations([make_refutation(prior, workload), make_refutation(prior, sibling), kept])
        catalog.forget_refutations([])
        catalog.forget_refutations([hex_of("none")])
        assert len(catalog.find_refutations([workload.cluster])) == 3
        for _ in range(2):
            catalog.forget_refutations([prior.id])
            assert catalog.find_refutations([workload.cluster]) == [kept]

    def test_a_refuted_record_that_moves_on_stays_refuted(
        self, catalog: Catalog, workload: Workload, prior: TuningRecord
    ) -> None:
        refutation = make_refutation(prior, workload)
        catalog.add_refutations([refutation])
        catalog.add_records([prior.with_state(RecordState.PUBLISHED)], [DIGEST])
        catalog.set_record_states([prior.id], RecordState.QUARANTINED, "drifted")
        assert catalog.find_refutations([workload.cluster]) == [refutation]

    def test_cost_models(self, catalog: Catalog) -> None:
        assert catalog.latest_cost_model('{"kind":"llvm"}') is None
        old, new = make_snapshot(created_at=1.0), make_snapshot(created_at=2.0, metadata={"n_features": 164})
        catalog.add_cost_model(new, hex_of("booster 2"), hex_of("samples 2"))
        catalog.add_cost_model(old, hex_of("booster 1"), hex_of("samples 1"))
        catalog.add_cost_model(old, hex_of("booster 1"), hex_of("samples 1"))
        expected = dataclasses.replace(new, booster=b"", samples=b"")
        assert catalog.latest_cost_model(new.target) == (expected, hex_of("booster 2"), hex_of("samples 2"))
        assert catalog.latest_cost_model('{"kind":"cuda"}') is None

    def test_outdated_cost_models(self, catalog: Catalog) -> None:
        targets = ('{"kind":"llvm"}', '{"kind":"cuda"}')
        for target in targets:
            for i in (2, 0, 3, 1):
                model = make_snapshot(target=target, created_at=float(i))
                catalog.add_cost_model(model, hex_of(f"booster {target} {i}"), hex_of(f"samples {target} {i}"))
        outdated = catalog.outdated_cost_models(3)
        assert set(outdated.values()) == {(hex_of(f"booster {t} 0"), hex_of(f"samples {t} 0")) for t in targets}
        assert len(catalog.outdated_cost_models(1)) == 6
        assert catalog.outdated_cost_models(4) == {}
        catalog.remove_cost_models([])
        for _ in range(2):
            catalog.remove_cost_models([*catalog.outdated_cost_models(1), hex_of("none")])
            assert catalog.count_rows()["cost_models"] == 2
        for target in targets:
            newest = catalog.latest_cost_model(target)
            assert newest is not None
            assert newest[1] == hex_of(f"booster {target} 3")

    def test_runs(self, catalog: Catalog) -> None:
        runs = [make_run(f"r{i}", version=str(i % 2), created_at=float(i)) for i in range(4)]
        for run in runs:
            catalog.put_run(run)
        cut = dataclasses.replace(runs[0], finished=False, seed=7)
        catalog.put_run(cut)
        assert catalog.list_runs() == [runs[3], runs[2], runs[1], cut]
        assert catalog.list_runs(limit=2) == [runs[3], runs[2]]
        assert catalog.list_runs(network="ocr", version="1") == [runs[3], runs[1]]
        assert catalog.list_runs(network="det") == []

    def test_named_blobs(self, catalog: Catalog, workload: Workload, environment: str) -> None:
        assert catalog.named_blobs() == set()
        catalog.add_records([make_record(workload, environment)], [DIGEST])
        catalog.add_cost_model(make_snapshot(), hex_of("booster"), hex_of("samples"))
        assert catalog.named_blobs() == {DIGEST, hex_of("booster"), hex_of("samples")}

    def test_threads_may_share_it(self, catalog: Catalog, workload: Workload, environment: str) -> None:
        def write(i: int) -> int:
            catalog.add_records([make_record(workload, environment, run_id=f"run-{i}-{j}") for j in range(5)], [DIGEST] * 5)
            return len(catalog.find_records(workloads=[workload.key], per_workload=1000)) % 5

        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(write, range(16))) == {0}
        assert len(catalog.list_records(limit=1000)) == 80

    def test_pins(self, catalog: Catalog, workload: Workload) -> None:
        catalog.put_network(make_network("ocr", "1", (workload,)))
        assert catalog.list_pins() == set()
        for _ in range(2):
            catalog.pin_network("ocr", "1")
            assert catalog.list_pins() == {("ocr", "1")}
        with pytest.raises(NotFound, match="ocr"):
            catalog.pin_network("ocr", "2")
        for _ in range(2):
            catalog.unpin_network("ocr", "1")
            assert catalog.list_pins() == set()
        catalog.unpin_network("none", "")

    def test_a_network_that_is_put_anew_stays_pinned(self, catalog: Catalog, workload: Workload) -> None:
        catalog.put_network(make_network("ocr", "1", (workload,)))
        catalog.pin_network("ocr", "1")
        new = make_network("ocr", "1", (), source="new.onnx")
        catalog.put_network(new)
        assert catalog.list_pins() == {("ocr", "1")}
        assert catalog.list_networks() == [new]

    def test_deleting_a_network_keeps_its_workloads_and_their_records(
        self, catalog: Catalog, workload: Workload, prior: TuningRecord
    ) -> None:
        one, two = (make_network("ocr", version, (workload,)) for version in "12")
        for network in (one, two):
            catalog.put_network(network)
        catalog.delete_network("ocr", "1")
        assert catalog.list_networks() == [two]
        assert catalog.list_records(network=("ocr", "1")) == []
        assert catalog.get_workloads([workload.key]) == {workload.key: workload}
        assert catalog.list_records() == [(stored(prior), DIGEST)]
        with pytest.raises(NotFound, match="ocr"):
            catalog.delete_network("ocr", "1")

    def test_a_pinned_network_is_not_deleted(self, catalog: Catalog, workload: Workload) -> None:
        network = make_network("ocr", "1", (workload,))
        catalog.put_network(network)
        catalog.pin_network("ocr", "1")
        with pytest.raises(Conflict, match="pinned") as caught:
            catalog.delete_network("ocr", "1")
        assert caught.value.hint
        assert catalog.list_networks() == [network]
        catalog.unpin_network("ocr", "1")
        catalog.delete_network("ocr", "1")
        assert catalog.list_networks() == []

    def test_beaten_records(self, catalog: Catalog, workload: Workload, environment: str) -> None:
        other = catalog.put_environment(make_environment(tvm="0.26.0"))
        records = {
            f"{key[:4]} {state} {ms}": make_record(
                workload, key, run_id=f"{key[:4]} {state} {ms}", state=state, run_times_s=(ms * 1e-3,)
            )
            for key in (environment, other)
            for state in RecordState
            for ms in (3, 1, 2)
        }
        catalog.add_records(list(records.values()), [DIGEST] * len(records))
        names = {record.id: name for name, record in records.items()}
        for keep, beaten in (
            (9, ()),
            (8, ("measured 3",)),
            (4, ("checked 2", "checked 3", "measured 1", "measured 2", "measured 3")),
        ):
            expected = {f"{key[:4]} {name}" for key in (environment, other) for name in beaten}
            assert {names[i] for i in catalog.beaten_records(keep)} == expected
        assert len(catalog.beaten_records(0)) == 18

    def test_equals_are_beaten_in_one_order(self, catalog: Catalog, workload: Workload, environment: str) -> None:
        records = [make_record(workload, environment, run_id=f"run-{i}") for i in range(5)]
        catalog.add_records(records, [DIGEST] * 5)
        by_id = sorted(record.id for record in records)
        assert sorted(catalog.beaten_records(2)) == by_id[2:]
        assert [record.id for record, _ in catalog.find_records(workloads=[workload.key], per_workload=2)] == by_id[:2]

    def test_records_of_pinned_networks_are_not_beaten(self, catalog: Catalog, environment: str) -> None:
        workloads = [make_workload(f"w{i}") for i in range(3)]
        catalog.put_workloads(workloads)
        catalog.put_network(make_network("ocr", "1", tuple(workloads[:2])))
        catalog.put_network(make_network("det", "1", tuple(workloads[1:])))
        records = [make_record(w, environment, run_id=f"run-{i}") for w in workloads for i in range(2)]
        catalog.add_records(records, [DIGEST] * 6)
        assert len(catalog.beaten_records(1)) == 3
        catalog.pin_network("ocr", "1")
        (beaten,) = catalog.beaten_records(1)
        assert catalog.get_record(beaten)[0].workload_key == workloads[2].key
        catalog.pin_network("det", "1")
        assert catalog.beaten_records(1) == []

    def test_removing_beaten_records(self, catalog: Catalog, workload: Workload, environment: str, prior: TuningRecord) -> None:
        other = make_workload("other")
        catalog.put_workloads([other])
        slow = [
            make_record(w, environment, run_id=f"slow-{i}", run_times_s=(1.0,)) for w in (workload, other) for i in range(2)
        ]
        catalog.add_records(slow, [DIGEST] * 4)
        catalog.add_refutations([make_refutation(record, other) for record in (prior, slow[0])])
        assert catalog.remove_beaten([], 1) == []
        assert catalog.remove_beaten([prior.id, slow[0].id, hex_of("none")], 1) == [slow[0].id]
        assert catalog.remove_beaten([slow[0].id, slow[1].id], 2) == []
        assert {record.id for record, _ in catalog.list_records()} == {prior.id, *(record.id for record in slow[1:])}
        assert [r.record_id for r in catalog.find_refutations([other.cluster])] == [prior.id]

    def test_what_is_published_or_pinned_since_it_was_chosen_is_not_removed(self, catalog: Catalog, environment: str) -> None:
        workloads = [make_workload(f"w{i}") for i in range(3)]
        catalog.put_workloads(workloads)
        catalog.put_network(make_network("ocr", "1", (workloads[0],)))
        records = [make_record(w, environment, run_id=f"run-{i}") for w in workloads for i in range(2)]
        catalog.add_records(records, [DIGEST] * 6)
        chosen = catalog.beaten_records(1)
        catalog.pin_network("ocr", "1")
        (published,) = (i for i in chosen if catalog.get_record(i)[0].workload_key == workloads[1].key)
        catalog.set_record_states([published], RecordState.PUBLISHED, "")
        (removed,) = catalog.remove_beaten(chosen, 1)
        assert removed in chosen
        assert [record.workload_key for record, _ in catalog.list_records()].count(workloads[2].key) == 1

    def test_removing_records_removes_what_was_refuted_of_them(
        self, catalog: Catalog, workload: Workload, environment: str, prior: TuningRecord
    ) -> None:
        others = [make_record(workload, environment, run_id=f"other-{i}", parent_id=prior.id) for i in range(2)]
        catalog.add_records(others, [DIGEST] * 2)
        kept = make_refutation(others[1], workload)
        catalog.add_refutations([make_refutation(prior, workload), kept])
        catalog.remove_records([])
        for _ in range(2):
            catalog.remove_records([prior.id, others[0].id, hex_of("none")])
            assert catalog.list_records() == [(stored(others[1]), DIGEST)]
            assert catalog.find_refutations([workload.cluster]) == [kept]

    def test_counting_rows(self, catalog: Catalog, environment: str) -> None:
        kinds = ("workloads", "clusters", "networks", "pins", "refutations", "events", "invalidated", "cost_models", "runs")
        nothing = dict.fromkeys(kinds, 0)
        by_state = dict.fromkeys((state.value for state in RecordState), 0)
        assert catalog.count_rows() == {**nothing, **by_state, "environments": 1}
        workloads = [make_workload(name, cluster=cluster) for name, cluster in (("x", "c"), ("y", "c"), ("z", "d"))]
        catalog.put_workloads(workloads)
        catalog.put_network(make_network("ocr", "1", tuple(workloads)))
        catalog.pin_network("ocr", "1")
        states = [RecordState.MEASURED, RecordState.MEASURED, RecordState.PUBLISHED, RecordState.QUARANTINED]
        records = [make_record(workloads[0], environment, run_id=f"run-{i}", state=state) for i, state in enumerate(states)]
        catalog.add_records(records, [DIGEST] * 4)
        catalog.add_refutations([make_refutation(record, workloads[1]) for record in records[:2]])
        catalog.add_cost_model(make_snapshot(), hex_of("booster"), hex_of("samples"))
        catalog.put_run(make_run("run-1"))
        catalog.invalidate_records(make_event(records[0].id))
        assert catalog.count_rows() == {
            "environments": 1,
            "workloads": 3,
            "clusters": 2,
            "networks": 1,
            "pins": 1,
            "refutations": 2,
            "events": 1,
            "invalidated": 1,
            "cost_models": 1,
            "runs": 1,
            "measured": 2,
            "checked": 0,
            "published": 1,
            "quarantined": 1,
        }

    def test_a_lease_has_one_holder(self, catalog: Catalog) -> None:
        lease = taken(catalog.acquire_lease("cluster c", "run-1", LONG_S))
        assert (lease.name, lease.holder) == ("cluster c", "run-1")
        assert catalog.acquire_lease("cluster c", "run-2", LONG_S) is None
        assert taken(catalog.acquire_lease("cluster d", "run-2", LONG_S)).holder == "run-2"

    def test_a_holder_that_asks_again_gets_its_own_lease_renewed(self, catalog: Catalog) -> None:
        lease = taken(catalog.acquire_lease("c", "run-1", LONG_S))
        again = taken(catalog.acquire_lease("c", "run-1", 2 * LONG_S))
        assert again.token == lease.token
        assert again.expires_at > lease.expires_at + 0.9 * LONG_S
        longest = taken(catalog.renew_lease(lease, 3 * LONG_S))
        assert longest.token == lease.token
        assert longest.expires_at > again.expires_at + 0.9 * LONG_S

    def test_an_expired_lease_goes_to_the_next(self, catalog: Catalog) -> None:
        lease = taken(catalog.acquire_lease("c", "run-1", EXPIRED_S))
        other = taken(catalog.acquire_lease("c", "run-2", LONG_S))
        assert other.token > lease.token
        assert catalog.renew_lease(lease, LONG_S) is None
        assert catalog.acquire_lease("c", "run-1", LONG_S) is None
        catalog.release_lease(lease)
        assert taken(catalog.renew_lease(other, LONG_S)).token == other.token

    def test_an_expired_lease_that_nobody_took_is_renewed(self, catalog: Catalog) -> None:
        lease = taken(catalog.acquire_lease("c", "run-1", EXPIRED_S))
        assert taken(catalog.renew_lease(lease, LONG_S)).token == lease.token
        assert catalog.acquire_lease("c", "run-2", LONG_S) is None

    def test_a_token_never_goes_back(self, catalog: Catalog) -> None:
        tokens = []
        for i in range(6):
            lease = taken(catalog.acquire_lease("c", f"run-{i % 2}", LONG_S))
            tokens.append(lease.token)
            for _ in range(2):
                catalog.release_lease(lease)
        assert all(a < b for a, b in itertools.pairwise(tokens))

    def test_a_lease_that_was_never_there_is_not_renewed(self, catalog: Catalog) -> None:
        unknown = Lease("c", "run-1", 1, 0.0)
        assert catalog.renew_lease(unknown, LONG_S) is None
        catalog.release_lease(unknown)
        assert taken(catalog.acquire_lease("c", "run-2", LONG_S)).holder == "run-2"

    def test_a_renewed_token_of_an_earlier_turn_is_outdated(self, catalog: Catalog) -> None:
        first = taken(catalog.acquire_lease("c", "run-1", EXPIRED_S))
        taken(catalog.acquire_lease("c", "run-2", EXPIRED_S))
        third = taken(catalog.acquire_lease("c", "run-1", LONG_S))
        assert third.token > first.token
        assert catalog.renew_lease(first, LONG_S) is None
        catalog.release_lease(first)
        assert catalog.acquire_lease("c", "run-2", LONG_S) is None

    def test_of_many_that_race_for_a_lease_one_gets_it(self, catalog: Catalog) -> None:
        at_once = threading.Barrier(8)

        def acquire(holder: str) -> Lease | None:
            at_once.wait()
            return catalog.acquire_lease("c", holder, LONG_S)

        last_token = 0
        with ThreadPoolExecutor(8) as pool:
            for turn in range(4):
                (winner,) = filter(None, pool.map(acquire, [f"run-{turn}-{i}" for i in range(8)]))
                assert winner.token > last_token
                last_token = winner.token
                catalog.release_lease(winner)

    def test_a_write_of_the_holder_passes_its_fence(self, catalog: Catalog, workload: Workload, environment: str) -> None:
        leases = [taken(catalog.acquire_lease(name, "run-1", ttl)) for name, ttl in (("d", LONG_S), ("c", EXPIRED_S))]
        record = make_record(workload, environment)
        catalog.add_records([record], [DIGEST], fences=leases)
        catalog.add_records([], [], fences=leases)
        assert catalog.list_records() == [(stored(record), DIGEST)]

    def test_a_write_with_an_outdated_token_is_refused_whole(
        self, catalog: Catalog, workload: Workload, environment: str
    ) -> None:
        held = taken(catalog.acquire_lease("a", "run-1", LONG_S))
        lost = taken(catalog.acquire_lease("b", "run-1", EXPIRED_S))
        taken(catalog.acquire_lease("b", "run-2", EXPIRED_S))
        record = make_record(workload, environment)
        for fences in ([lost], [held, lost], [Lease("never taken", "run-1", 1, 0.0)]):
            with pytest.raises(Conflict, match=fences[-1].name) as caught:
                catalog.add_records([record], [DIGEST], fences=fences)
            assert caught.value.hint
        taken(catalog.acquire_lease("b", "run-1", LONG_S))
        with pytest.raises(Conflict, match="'b'"):
            catalog.add_records([record], [DIGEST], fences=[lost])
        assert catalog.list_records() == []

    def test_nothing_of_the_last_holder_comes_after_the_next(
        self, catalog: Catalog, workload: Workload, environment: str
    ) -> None:
        at_once = threading.Barrier(2)

        def write(lease: Lease) -> str:
            record = make_record(workload, environment, run_id=lease.name)
            at_once.wait()
            with contextlib.suppress(Conflict):
                catalog.add_records([record], [DIGEST], fences=[lease])
            return record.id

        def take_over(lease: Lease) -> set[str]:
            at_once.wait()
            taken(catalog.acquire_lease(lease.name, "run-2", LONG_S))
            return {record.id for record, _ in catalog.list_records()}

        with ThreadPoolExecutor(2) as pool:
            for i in range(20):
                lease = taken(catalog.acquire_lease(f"cluster {i}", "run-1", EXPIRED_S))
                writing, taking = pool.submit(write, lease), pool.submit(take_over, lease)
                written, known = writing.result(), taking.result()
                assert (written in known) == (written in {record.id for record, _ in catalog.list_records()})

    def test_networks_and_pins_of_many_writers(self, catalog: Catalog, workload: Workload) -> None:
        def replace(i: int) -> bool:
            catalog.put_network(make_network("ocr", "1", (workload,) * (i % 3), source=str(i % 3)))
            return all(len(network.tasks) == int(network.source) for network in catalog.list_networks())

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(replace, range(24)))

    def test_writers_of_the_same_rows_do_not_block_each_other(
        self, catalog: Catalog, workload: Workload, environment: str
    ) -> None:
        records = [make_record(workload, environment, run_id=f"run-{i}") for i in range(20)]
        workloads = [make_workload(f"w{i}") for i in range(20)]

        def write(i: int) -> None:
            order = random.Random(i)
            catalog.put_workloads(order.sample(workloads, 20))
            catalog.add_records(order.sample(records, 20), [DIGEST] * 20)
            catalog.set_record_states([r.id for r in order.sample(records, 10)], RecordState.MEASURED, f"by {i}")
            catalog.add_refutations([make_refutation(r, workload) for r in order.sample(records, 10)])
            catalog.forget_refutations([r.id for r in order.sample(records, 10)])

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(write, range(24)))
        assert len(catalog.list_records()) == 20
