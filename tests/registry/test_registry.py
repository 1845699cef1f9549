from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from bcd_registry.blobs.digests import blob_digest
from bcd_registry.blobs.local import LocalBlobs
from bcd_registry.blobs.memory import MemoryBlobs
from bcd_registry.catalog.sql import SqlCatalog
from bcd_registry.errors import Conflict, CorruptBlob, MeasureError, NotFound, StoreDenied, StoreUnavailable
from bcd_registry.model import Environment, Grade, RecordState, TuningRecord, Workload
from bcd_registry.parallel import in_threads
from bcd_registry.registry import Registry
from bcd_registry.testing.values import (
    ENVIRONMENT,
    TRACE,
    hex_of,
    make_environment,
    make_network,
    make_record,
    make_run,
    make_snapshot,
    make_workload,
)
from bcd_registry.traces import pack_trace, unpack_trace

OWN = make_workload("own", cluster="c", extents=(16, 64))
SIBLING = make_workload("sibling", cluster="c", extents=(16, 128))


@pytest.fixture
def key(registry: Registry) -> str:
    registry.put_workloads([OWN, SIBLING])
    return registry.put_environment(ENVIRONMENT)


def checked(workload: Workload, key: str, n: int = 0, **changes: Any) -> TuningRecord:
    """A checked record whose trace, decisions and latency (1 + n ms) are its own."""
    fields: dict[str, Any] = {
        "trace": [workload.key, n],
        "decisions": (("SampleCategorical", n),),
        "run_times_s": ((n + 1) * 1e-3,),
        "state": RecordState.CHECKED,
    }
    return make_record(workload, key, **{**fields, **changes})


def trace_digest(record: TuningRecord) -> str:
    return blob_digest(pack_trace(record.workload_key, record.trace))


def blob_path(tmp_path: Path, record: TuningRecord) -> Path:
    (path,) = (tmp_path / "blobs").rglob(trace_digest(record))
    return path


def test_a_published_record_is_served_with_its_trace(registry: Registry, key: str) -> None:
    (published,) = registry.publish([checked(OWN, key)])
    assert published.state is RecordState.PUBLISHED
    exact, cluster = registry.lookup([OWN, SIBLING], ENVIRONMENT, {OWN.key: 32, SIBLING.key: 32})
    assert (exact.grade, exact.record) == (Grade.EXACT, published)
    assert (cluster.grade, [prior.record for prior in cluster.priors]) == (Grade.CLUSTER, [published])
    assert registry.get_record(published.id[:10]) == published
    assert registry.list_records() == [dataclasses.replace(published, trace=None)]


def test_kept_records_are_priors_only(registry: Registry, key: str) -> None:
    kept = [checked(OWN, key, 1, state=RecordState.MEASURED), checked(OWN, key, 2)]
    registry.keep(kept)
    registry.keep([])
    (match,) = registry.lookup([OWN], ENVIRONMENT, {OWN.key: 32})
    assert match.grade is Grade.STALE
    assert {prior.record.id for prior in match.priors} == {record.id for record in kept}


def test_keeping_what_is_published_does_not_take_it_back(registry: Registry, key: str) -> None:
    record = checked(OWN, key)
    registry.publish([record])
    registry.keep([record.with_state(RecordState.MEASURED)])
    assert registry.get_record(record.id).state is RecordState.PUBLISHED


def test_a_lookup_writes_nothing_and_a_fresh_registry_is_cold(registry: Registry, tmp_path: Path) -> None:
    (match,) = registry.lookup([OWN], ENVIRONMENT, {OWN.key: 32})
    assert match.grade is Grade.COLD
    assert registry.lookup([], ENVIRONMENT, {}) == []
    assert registry.get_workloads([OWN.key]) == {}
    assert not (tmp_path / "blobs").exists()


def test_times_come_from_the_clock_unless_given(registry: Registry, key: str) -> None:
    (dated,) = registry.publish([checked(OWN, key, created_at=0.0)])
    assert dated.created_at == 5000.0
    assert registry.get_record(dated.id).created_at == 5000.0
    registry.publish([checked(OWN, key, 1, created_at=77.0)])
    assert registry.get_record(checked(OWN, key, 1).id).created_at == 77.0


@pytest.mark.parametrize("times", [(), (0.0,), (-1.0,), (1e-3, float("inf")), (float("nan"),)])
def test_invalid_latencies_are_refused_before_anything_is_stored(
    registry: Registry, key: str, times: tuple[float, ...], tmp_path: Path
) -> None:
    for write in (registry.keep, registry.publish):
        with pytest.raises(MeasureError, match="no valid latency"):
            write([checked(OWN, key), checked(OWN, key, 1, run_times_s=times)])
    assert registry.list_records() == []
    assert not (tmp_path / "blobs").exists()


def test_only_what_was_checked_is_published(registry: Registry, key: str) -> None:
    for state in (RecordState.MEASURED, RecordState.QUARANTINED):
        with pytest.raises(MeasureError, match=f"is {state}: only a checked one can be published"):
            registry.publish([checked(OWN, key), checked(OWN, key, 1, state=state)])
    for state in (RecordState.PUBLISHED, RecordState.QUARANTINED):
        with pytest.raises(MeasureError, match="only a measured or checked one is kept"):
            registry.keep([checked(OWN, key, 1, state=state)])
    with pytest.raises(MeasureError, match="no trace"):
        registry.publish([checked(OWN, key, trace=None)])
    assert registry.list_records() == []


def test_a_batch_with_an_unknown_workload_leaves_no_row(registry: Registry, key: str) -> None:
    with pytest.raises(NotFound):
        registry.publish([checked(OWN, key), checked(make_workload("unknown"), key)])
    assert registry.list_records() == []


@pytest.mark.parametrize("what", ["missing", "damaged", "empty", "of another workload"])
def test_a_bad_trace_is_quarantined_and_the_next_best_is_served(
    registry: Registry, catalog: SqlCatalog, key: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    best, second = registry.publish([checked(OWN, key, 0), checked(OWN, key, 1)])
    if what == "missing":
        blob_path(tmp_path, best).unlink()
    elif what == "of another workload":
        other = LocalBlobs(tmp_path / "blobs").put(pack_trace(SIBLING.key, TRACE))
        catalog.add_records([best], [other])
    else:
        blob_path(tmp_path, best).write_bytes(b"" if what == "empty" else b"damaged")
    with caplog.at_level(logging.WARNING):
        (match,) = registry.lookup([OWN], ENVIRONMENT, {OWN.key: 32})
    assert (match.grade, match.record) == (Grade.EXACT, second)
    assert f"record {best.id[:12]} is quarantined" in caplog.text
    state, reason = next((r.state, r.reason) for r in registry.list_records() if r.id == best.id)
    assert state is RecordState.QUARANTINED
    assert "blob" in reason
    with pytest.raises((CorruptBlob, NotFound)):
        registry.get_record(best.id)


def test_bad_priors_are_replaced_too_and_nothing_left_is_cold(registry: Registry, key: str, tmp_path: Path) -> None:
    records = registry.publish([checked(SIBLING, key, n) for n in range(8)])
    for record in records[:5]:
        blob_path(tmp_path, record).unlink()
    (match,) = registry.lookup([OWN], ENVIRONMENT, {OWN.key: 32})
    assert [prior.record for prior in match.priors] == records[5:]
    for record in records[5:]:
        blob_path(tmp_path, record).unlink()
    (match,) = registry.lookup([OWN], ENVIRONMENT, {OWN.key: 32})
    assert match.grade is Grade.COLD


def test_publishing_over_a_damaged_blob_repairs_it(registry: Registry, key: str, tmp_path: Path) -> None:
    (record,) = registry.publish([checked(OWN, key)])
    blob_path(tmp_path, record).write_bytes(b"damaged")
    again = record.with_state(RecordState.CHECKED)
    registry.publish([again])
    assert registry.get_record(record.id) == record


def test_a_quarantined_record_stays_out(registry: Registry, key: str) -> None:
    record = checked(OWN, key)
    registry.publish([record])
    registry.quarantine([record.id], "drifted")
    registry.quarantine([], "nothing")
    registry.publish([record])
    assert registry.get_record(record.id).state is RecordState.QUARANTINED
    assert registry.get_record(record.id).reason == "drifted"
    assert registry.lookup([OWN], ENVIRONMENT, {})[0].grade is Grade.COLD
    with pytest.raises(NotFound):
        registry.quarantine([hex_of("none")], "")


class DeniedCatalog(SqlCatalog):
    """Another user's catalog: it can be read."""

    def set_record_states(self, ids: Any, state: RecordState, reason: str) -> None:
        raise StoreDenied("read-only")


def test_a_reader_who_may_not_quarantine_is_served_the_next_best(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    blobs = MemoryBlobs()
    with DeniedCatalog.open_memory() as catalog:
        registry = Registry(catalog, blobs)
        registry.put_workloads([OWN])
        key = registry.put_environment(ENVIRONMENT)
        best, second = registry.publish([checked(OWN, key, 0), checked(OWN, key, 1)])
        blobs.delete(trace_digest(best))
        for _ in range(2):
            (match,) = registry.lookup([OWN], ENVIRONMENT, {})
            assert match.record == second
        assert caplog.text.count("cannot be marked") == 1


def test_what_a_reader_may_not_quarantine_is_left_out_of_his_lookups(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with DeniedCatalog.open_memory() as catalog:
        blobs = MemoryBlobs()
        registry = Registry(catalog, blobs)
        registry.put_workloads([OWN])
        key = registry.put_environment(ENVIRONMENT)
        best, second = registry.publish([checked(OWN, key, 0), checked(OWN, key, 1)])
        registry.quarantine([best.id], "it does not replay")
        assert "left out here only" in caplog.text
        assert registry.lookup([OWN], ENVIRONMENT, {})[0].record == second
        registry.quarantine([second.id], "nor does this")
        assert registry.lookup([OWN], ENVIRONMENT, {})[0].grade is Grade.COLD
        assert Registry(catalog, blobs).lookup([OWN], ENVIRONMENT, {})[0].record == best
        assert {record.state for record in registry.list_records()} == {RecordState.PUBLISHED}


class FailingBlobs(MemoryBlobs):
    def get(self, digest: str) -> bytes:
        raise StoreUnavailable("the store does not answer")


def test_a_store_that_does_not_answer_is_an_error_not_a_miss() -> None:
    with SqlCatalog.open_memory() as catalog:
        registry = Registry(catalog, FailingBlobs())
        registry.put_workloads([OWN])
        registry.publish([checked(OWN, registry.put_environment(ENVIRONMENT))])
        with pytest.raises(StoreUnavailable, match="does not answer"):
            registry.lookup([OWN], ENVIRONMENT, {})
        assert registry.list_records()[0].state is RecordState.PUBLISHED


class FullBlobs(MemoryBlobs):
    def put(self, data: bytes) -> str:
        raise StoreUnavailable("no space left")


def test_no_row_without_its_blob() -> None:
    with SqlCatalog.open_memory() as catalog:
        registry = Registry(catalog, FullBlobs())
        registry.put_workloads([OWN])
        record = checked(OWN, registry.put_environment(ENVIRONMENT))
        with pytest.raises(StoreUnavailable):
            registry.publish([record])
        assert catalog.named_blobs() == set()


def test_every_named_blob_is_there(registry: Registry, catalog: SqlCatalog, blobs: LocalBlobs, key: str) -> None:
    registry.publish([checked(OWN, key, n) for n in range(3)])
    registry.add_cost_model(make_snapshot())
    assert catalog.named_blobs() == registry.named_blobs() == {blob.digest for blob in registry.iter_blobs()}


def test_one_environment_per_key(registry: Registry, key: str) -> None:
    registry.publish([checked(OWN, key)])
    for tvm, grade in (("0.27.0", Grade.EXACT), ("0.28.0", Grade.STALE)):
        here: Environment = make_environment(tvm=tvm, cpu_model="Xeon")
        assert registry.lookup([OWN], here, {OWN.key: 32})[0].grade is grade
    assert registry.get_environment(key).as_json() == ENVIRONMENT.as_json()


def test_networks_bring_their_workloads(registry: Registry) -> None:
    network = make_network("ocr", "1", (OWN, SIBLING, OWN))
    registry.register_network(network)
    assert registry.list_networks() == [network]
    assert registry.get_network("ocr", "1") == network
    assert registry.get_workloads([OWN.key, SIBLING.key]) == {OWN.key: OWN, SIBLING.key: SIBLING}
    key = registry.put_environment(ENVIRONMENT)
    registry.publish([checked(SIBLING, key)])
    assert len(registry.list_records(network=("ocr", "1"))) == 1


def test_cost_models(registry: Registry, blobs: LocalBlobs) -> None:
    assert registry.latest_cost_model('{"kind":"llvm"}') is None
    old, new = make_snapshot(), make_snapshot(created_at=0.0, booster=b"new")
    registry.add_cost_model(old)
    registry.add_cost_model(new)
    expected = dataclasses.replace(new, created_at=5000.0)
    assert registry.latest_cost_model(new.target) == expected
    blobs._path(blob_digest(b"new")).write_bytes(b"bad")
    with pytest.raises(CorruptBlob):
        registry.latest_cost_model(new.target)
    blobs.delete(blob_digest(b"new"))
    with pytest.raises(NotFound):
        registry.latest_cost_model(new.target)


def test_runs(registry: Registry) -> None:
    registry.put_run(make_run("a", created_at=0.0))
    registry.put_run(make_run("b", network="det"))
    assert [(run.id, run.created_at) for run in registry.list_runs()] == [("a", 5000.0), ("b", 1000.0)]
    assert [run.id for run in registry.list_runs(network="det", version="1", limit=1)] == ["b"]


def test_a_lease_fences_what_is_written(registry: Registry, key: str) -> None:
    mine = registry.acquire_lease("cluster", "run-1", 60.0)
    assert mine is not None
    assert registry.acquire_lease("cluster", "run-2", 60.0) is None
    registry.keep([checked(OWN, key)], fences=[mine])
    renewed = registry.renew_lease(mine, 120.0)
    assert renewed is not None
    assert renewed.token == mine.token
    registry.release_lease(renewed)
    theirs = registry.acquire_lease("cluster", "run-2", 60.0)
    assert theirs is not None
    assert registry.renew_lease(mine, 60.0) is None
    for write in (registry.keep, registry.publish):
        with pytest.raises(Conflict):
            write([checked(OWN, key, 1)], fences=[mine])
    assert len(registry.list_records()) == 1
    registry.publish([checked(OWN, key, 1)], fences=[theirs])
    assert len(registry.list_records()) == 2


def test_what_is_pinned_stays(registry: Registry) -> None:
    registry.register_network(make_network("ocr", "1", (OWN,)))
    with pytest.raises(NotFound):
        registry.pin_network("ocr", "2")
    registry.pin_network("ocr", "1")
    registry.pin_network("ocr", "1")
    assert registry.list_pins() == {("ocr", "1")}
    with pytest.raises(Conflict):
        registry.delete_network("ocr", "1")
    registry.unpin_network("ocr", "1")
    registry.unpin_network("ocr", "1")
    registry.delete_network("ocr", "1")
    assert registry.list_networks() == []
    assert registry.counts()["workloads"] == 1


def test_the_blob_of_a_trace(registry: Registry, key: str) -> None:
    record = checked(OWN, key)
    registry.publish([record])
    assert registry.trace_digest(record.id) == trace_digest(record)
    registry.delete_blob(trace_digest(record))
    registry.remove_records([record.id])
    assert list(registry.iter_blobs()) == []
    with pytest.raises(NotFound):
        registry.trace_digest(record.id)


def test_closing_closes_once(catalog: SqlCatalog, blobs: LocalBlobs) -> None:
    closed: list[int] = []
    with Registry(catalog, blobs, on_close=lambda: closed.append(1)) as registry:
        registry.close()
    assert closed == [1]


def test_a_conflict_that_stays_is_raised(catalog: SqlCatalog) -> None:
    class Stubborn(MemoryBlobs):
        def put(self, data: bytes) -> str:
            raise Conflict("other bytes")

    with pytest.raises(Conflict):
        Registry(catalog, Stubborn()).add_cost_model(make_snapshot())


@pytest.mark.parametrize("name", ["", "../../etc/passwd", "A" * 64, hex_of("trace")[:-1]])
def test_a_row_that_names_no_blob_is_left_out(
    registry: Registry, catalog: SqlCatalog, key: str, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    best, second = registry.publish([checked(OWN, key, 0), checked(OWN, key, 1)])
    catalog.add_records([best], [name])
    (match,) = registry.lookup([OWN], ENVIRONMENT, {OWN.key: 32})
    assert (match.grade, match.record) == (Grade.EXACT, second)
    assert f"the row of record {best.id[:12]} is damaged: its trace_digest is no digest; it is left out" in caplog.text
    with pytest.raises(CorruptBlob, match="is no digest"):
        registry.get_record(best.id)


def test_a_cost_model_that_names_no_blob(registry: Registry, catalog: SqlCatalog) -> None:
    catalog.add_cost_model(make_snapshot(), "elsewhere", hex_of("samples"))
    with pytest.raises(CorruptBlob, match="its booster_digest is no digest"):
        registry.latest_cost_model(make_snapshot().target)


class SlowBlobs(MemoryBlobs):
    """Each call waits until so many are made at once, or for a second."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.at_once = threading.Barrier(n)
        self.met: list[str] = []

    def meet(self) -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            self.at_once.wait(1.0)
            self.met.append(threading.current_thread().name)

    def put(self, data: bytes) -> str:
        self.meet()
        return super().put(data)

    def get(self, digest: str) -> bytes:
        self.meet()
        return super().get(digest)


def test_blobs_are_put_and_got_several_at_a_time() -> None:
    blobs = SlowBlobs(4)
    with SqlCatalog.open_memory() as catalog:
        registry = Registry(catalog, blobs)
        registry.put_workloads([OWN, SIBLING])
        key = registry.put_environment(ENVIRONMENT)
        published = registry.publish([checked(SIBLING, key, n) for n in range(4)])
        assert len(blobs.met) == 4
        (match,) = registry.lookup([OWN], ENVIRONMENT, {})
        assert len(blobs.met) == 8
    assert [prior.record for prior in match.priors] == published


class RefusingBlobs(MemoryBlobs):
    """Takes the first record's trace alone; it refuses the second one's after that of another."""

    def __init__(self) -> None:
        super().__init__()
        self.refused = threading.Event()

    def put(self, data: bytes) -> str:
        number = unpack_trace(data, OWN.key)[1]
        if number == 0:
            return super().put(data)
        if number == 1:
            assert self.refused.wait(30.0)
        self.refused.set()
        raise StoreUnavailable(f"blob {number}")


def test_of_several_errors_the_first_record_s_is_raised() -> None:
    with SqlCatalog.open_memory() as catalog:
        registry = Registry(catalog, RefusingBlobs())
        registry.put_workloads([OWN])
        key = registry.put_environment(ENVIRONMENT)
        with pytest.raises(StoreUnavailable, match=r"blob 1$"):
            registry.publish([checked(OWN, key, n) for n in range(20)])
        assert registry.list_records() == []


def test_results_come_in_the_order_of_the_items() -> None:
    assert in_threads(str, range(5)) == list("01234")
    assert in_threads(str, []) == []
    with pytest.raises(ZeroDivisionError):
        in_threads(lambda number: 1 // number, range(1000))
