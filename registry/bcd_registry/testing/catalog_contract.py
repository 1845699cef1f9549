"""What every `Catalog` does. The names of the tests say it."""

# ruff: noqa: D102

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from bcd_registry.errors import NotFound
from bcd_registry.model import RecordState, Refutation, TuningRecord, Workload
from bcd_registry.ports import Catalog
from bcd_registry.staleness import environment_key

from .values import (
    ENVIRONMENT,
    hex_of,
    make_environment,
    make_network,
    make_record,
    make_refutation,
    make_run,
    make_snapshot,
    make_workload,
)

DIGEST = hex_of("trace")


def stored(record: TuningRecord) -> TuningRecord:
    """The record as a catalog returns it: without its trace."""
    return dataclasses.replace(record, trace=None)


class CatalogContract:
    """Inherit it and give the fixture `catalog`, an empty one."""

    @pytest.fixture
    def catalog(self) -> Catalog:
        """The empty catalog to test."""
        raise NotImplementedError

    @pytest.fixture
    def workload(self, catalog: Catalog) -> Workload:
        """A workload that is stored."""
        workload = make_workload("a")
        catalog.put_workloads([workload])
        return workload

    @pytest.fixture
    def environment(self, catalog: Catalog) -> str:
        """The key of an environment that is stored."""
        return catalog.put_environment(ENVIRONMENT)

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
