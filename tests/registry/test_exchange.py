"""Bundles out of a registry and into another."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from bcd_registry.blobs.memory import MemoryBlobs
from bcd_registry.bundle import Bundle, pack_bundle, read_bundle
from bcd_registry.catalog.sql import SqlCatalog
from bcd_registry.errors import NotFound
from bcd_registry.exchange import TakenIn, bundle_of, known_ids, take_in
from bcd_registry.model import Grade, RecordState, TuningRecord
from bcd_registry.registry import Registry
from bcd_registry.staleness import environment_key
from bcd_registry.testing.values import ENVIRONMENT, hex_of, make_network, make_record
from tests.registry.test_bundle import CONV, MATMUL, OTHER

KEY, OTHER_KEY = environment_key(ENVIRONMENT), environment_key(OTHER)
NETWORK = make_network("ocr", "v1", (CONV, MATMUL))
PARENT = make_record(CONV, KEY, state=RecordState.CHECKED, run_id="published")
CHILD = make_record(MATMUL, OTHER_KEY, state=RecordState.CHECKED, run_id="published", parent_id=PARENT.id)
UNTUNED = make_record(MATMUL, KEY, state=RecordState.CHECKED, run_id="published", trace=[], sketch="untuned", decisions=())


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Registry]:
    with SqlCatalog.open_file(tmp_path / "other.db") as catalog:
        yield Registry(catalog, MemoryBlobs(), clock=lambda: 6000.0)


def fill(registry: Registry) -> None:
    """The network, three published records and a prior."""
    registry.put_environment(ENVIRONMENT)
    registry.put_environment(OTHER)
    registry.register_network(NETWORK)
    registry.publish([PARENT, CHILD, UNTUNED])
    registry.keep([make_record(CONV, KEY, run_id="prior")])


def bundled(registry: Registry) -> Bundle:
    fill(registry)
    found, left_out = bundle_of(registry, "ocr", "v1")
    assert left_out == []
    return read_bundle(pack_bundle(found))


def states(registry: Registry) -> dict[str, RecordState]:
    return {record.id: record.state for record in registry.list_records(limit=1000)}


def test_what_is_published_goes_out_with_its_traces(registry: Registry) -> None:
    bundle = bundled(registry)
    assert bundle.network == NETWORK
    assert {record.id for record in bundle.records} == {PARENT.id, CHILD.id, UNTUNED.id}
    assert {record.state for record in bundle.records} == {RecordState.PUBLISHED}
    assert set(map(environment_key, bundle.environments)) == {KEY, OTHER_KEY}
    assert next(record for record in bundle.records if record.id == CHILD.id).parent_id == PARENT.id


def test_the_same_state_gives_the_same_bytes(registry: Registry, other: Registry) -> None:
    packed = pack_bundle(bundled(registry))
    take_in(other, read_bundle(packed), trust=True)
    assert pack_bundle(bundle_of(other, "ocr", "v1")[0]) == packed


def test_a_parent_that_stays_here_and_a_cost_model_are_not_named(registry: Registry) -> None:
    fill(registry)
    lonely = make_record(
        CONV, KEY, state=RecordState.CHECKED, run_id="lonely", parent_id=hex_of("elsewhere"), cost_model_id=hex_of("model")
    )
    registry.publish([lonely])
    found = next(record for record in bundle_of(registry, "ocr", "v1")[0].records if record.id == lonely.id)
    assert (found.parent_id, found.cost_model_id) == (None, None)


def test_what_was_taken_back_or_doubted_stays_here(registry: Registry) -> None:
    fill(registry)
    registry.quarantine([UNTUNED.id], "for a test")
    registry.invalidate([CHILD.id], "for a test")
    assert [record.id for record in bundle_of(registry, "ocr", "v1")[0].records] == [PARENT.id]
    registry.mark_drift({PARENT.id: "slower by half"}, "for a test")
    assert bundle_of(registry, "ocr", "v1")[0].records == ()


def test_a_record_whose_trace_is_gone_is_left_out_by_name(registry: Registry) -> None:
    fill(registry)
    registry.delete_blob(registry.trace_digest(CHILD.id))
    found, [line] = bundle_of(registry, "ocr", "v1")
    assert {record.id for record in found.records} == {PARENT.id, UNTUNED.id}
    assert line.startswith(f"record {CHILD.id[:12]} is left out: ")


def test_a_version_that_is_not_there(registry: Registry) -> None:
    with pytest.raises(NotFound):
        bundle_of(registry, "ocr", "v2")


def test_without_trust_records_become_priors_that_claim_no_search(registry: Registry, other: Registry) -> None:
    taken = take_in(other, bundled(registry), trust=False)
    assert taken == TakenIn(n_priors=2, n_refused=1, new_network=True)
    assert states(other) == {PARENT.id: RecordState.MEASURED, CHILD.id: RecordState.MEASURED}
    [match] = other.lookup([CONV], ENVIRONMENT, {CONV.key: 8})
    assert match.grade is Grade.STALE
    assert [(prior.record.trials, prior.record.depth) for prior in match.priors] == [(0, 0)]
    assert other.get_network("ocr", "v1") == NETWORK


def test_with_trust_published_records_are_served(registry: Registry, other: Registry) -> None:
    taken = take_in(other, bundled(registry), trust=True)
    assert taken == TakenIn(n_published=3, new_network=True)
    [match] = other.lookup([CONV], ENVIRONMENT, {CONV.key: 8})
    assert match.grade is Grade.EXACT
    assert match.record is not None
    assert match.record.id == PARENT.id


@pytest.mark.parametrize("trust", [False, True])
def test_taking_it_in_again_changes_nothing(registry: Registry, other: Registry, trust: bool) -> None:
    bundle = bundled(registry)
    first = take_in(other, bundle, trust=trust)
    before = (other.list_records(limit=1000), other.list_networks(), other.counts())
    again = take_in(other, bundle, trust=trust)
    assert first.changed
    assert not again.changed
    assert again.n_known == first.n_priors + first.n_published
    assert (other.list_records(limit=1000), other.list_networks(), other.counts()) == before


def test_a_registry_takes_nothing_of_its_own_bundle(registry: Registry) -> None:
    bundle = bundled(registry)
    before = registry.list_records(limit=1000)
    for trust in (False, True):
        assert not take_in(registry, bundle, trust=trust).changed
    assert registry.list_records(limit=1000) == before


def test_priors_become_results_with_trust(registry: Registry, other: Registry) -> None:
    bundle = bundled(registry)
    take_in(other, bundle, trust=False)
    assert take_in(other, bundle, trust=True).n_published == 3
    assert set(states(other).values()) == {RecordState.PUBLISHED}


def test_what_is_quarantined_here_stays_so(registry: Registry, other: Registry) -> None:
    bundle = bundled(registry)
    take_in(other, bundle, trust=False)
    other.quarantine([PARENT.id], "it was wrong here")
    assert take_in(other, bundle, trust=True).n_published == 2
    assert states(other)[PARENT.id] is RecordState.QUARANTINED


def test_what_was_taken_back_here_stays_so(registry: Registry, other: Registry) -> None:
    bundle = bundled(registry)
    take_in(other, bundle, trust=False)
    other.invalidate([PARENT.id], "it misled")
    assert take_in(other, bundle, trust=True).n_published == 2
    assert states(other)[PARENT.id] is RecordState.MEASURED
    assert other.get_record(PARENT.id).invalidated


def test_a_version_that_is_known_otherwise_stays_and_is_named(registry: Registry, other: Registry) -> None:
    bundle = bundled(registry)
    mine = make_network("ocr", "v1", (CONV,), digest=hex_of("other bytes"))
    other.register_network(mine)
    taken = take_in(other, bundle, trust=False)
    assert other.get_network("ocr", "v1") == mine
    assert (taken.new_network, taken.n_priors) == (False, 2)
    [note] = taken.notes
    assert note == "ocr:v1 is known here with other bytes or tasks: it stays as it is here"


def test_known_ids_are_of_records_in_any_state(registry: Registry) -> None:
    fill(registry)
    registry.quarantine([CHILD.id], "for a test")
    prior: TuningRecord = dataclasses.replace(PARENT, run_id="prior", state=RecordState.MEASURED)
    assert known_ids(registry, [CONV]) == {PARENT.id, prior.id}
    assert known_ids(registry, [MATMUL]) == {CHILD.id, UNTUNED.id}
    assert known_ids(registry, []) == set()
