from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import event

from bcd_registry.catalog.sql import SqlCatalog
from bcd_registry.errors import MeasureError, NotFound
from bcd_registry.lookup import Known, grade_workloads
from bcd_registry.model import Environment, Grade, Match, RecordState, Refutation, TuningRecord, Workload
from bcd_registry.registry import Registry
from bcd_registry.staleness import environment_key
from bcd_registry.testing.values import (
    ENVIRONMENT,
    hex_of,
    make_environment,
    make_record,
    make_refutation,
    make_workload,
)

OLD_TVM = make_environment(tvm="0.26.0")
OTHER_ISA = make_environment(isa=["sve"])
ENVIRONMENTS = {environment_key(e): e for e in (ENVIRONMENT, OLD_TVM, OTHER_ISA)}

OWN = make_workload("own", cluster="c", anchor="a", extents=(16, 64))
MISLED = make_workload("misled", cluster="c", anchor="a", extents=(16, 16))
NEAR = make_workload("near", cluster="c", anchor="a", extents=(32, 128))
FAR = make_workload("far", cluster="c", anchor="a", extents=(64, 256))
COUSIN = make_workload("cousin", cluster="d", anchor="a", extents=(16, 64, 3))
OTHER_COUSIN = make_workload("other-cousin", cluster="e", anchor="a", extents=(32, 128, 3))
WORKLOADS = {w.key: w for w in (OWN, MISLED, NEAR, FAR, COUSIN, OTHER_COUSIN)}
numbers = itertools.count()


def record(workload: Workload, ms: float = 1.0, environment: Environment = ENVIRONMENT, **changes: Any) -> TuningRecord:
    """A record with a schedule of its own."""
    decisions = (("SampleCategorical", next(numbers)),)
    fields = {"decisions": decisions, "run_times_s": (ms * 1e-3,), **changes}
    return make_record(workload, environment_key(environment), **fields)


def lookup(
    records: Sequence[TuningRecord], refutations: Sequence[Refutation], workload: Workload = OWN, asked: int = 32
) -> Match:
    known = Known(records, WORKLOADS, ENVIRONMENTS, refutations)
    (match,) = grade_workloads([workload], known, ENVIRONMENT, {workload.key: asked})
    return match


def prior_ids(match: Match) -> list[str]:
    return [prior.record.id for prior in match.priors]


def test_a_prior_is_left_out_for_the_workload_that_it_misled() -> None:
    near, far = record(NEAR), record(FAR)
    match = lookup([near, far], [make_refutation(near, OWN)])
    assert (match.grade, prior_ids(match)) == (Grade.CLUSTER, [far.id])
    assert match.reason == (
        "no record of this workload; 1 sibling known, nearest at distance 2.0; 1 prior refuted by run ab12cd34"
    )


def test_the_misled_workload_is_never_served_it_whatever_the_distance_says() -> None:
    near = record(NEAR)
    assert lookup([near], [make_refutation(near, OWN, distance=math.inf)]).grade is Grade.COLD


@pytest.mark.parametrize(("distance", "used"), [(0.0, False), (1.0, False), (1.5, True), (math.inf, True)])
def test_others_of_the_cluster_may_use_it_when_they_are_nearer(distance: float, used: bool) -> None:
    near = record(NEAR)
    assert OWN.distance(NEAR) == 1.0
    match = lookup([near], [make_refutation(near, MISLED, distance=distance)])
    assert prior_ids(match) == ([near.id] if used else [])
    assert ("refuted" in match.reason) is not used


def test_workloads_with_other_epilogues_are_compared_by_their_main_blocks() -> None:
    cousin = record(OTHER_COUSIN)
    assert (OWN.distance(OTHER_COUSIN), OWN.anchor_distance(OTHER_COUSIN)) == (math.inf, 1.0)
    for distance, grade in ((1.0, Grade.COLD), (1.5, Grade.ANCHOR)):
        assert lookup([cousin], [make_refutation(cousin, MISLED, distance=distance)]).grade is grade


def test_a_prior_that_is_infinitely_far_is_left_out_for_all_that_are() -> None:
    odd = make_workload("odd", cluster="c", anchor="a", extents=(16, 64, 3))
    prior = record(odd)
    known = Known([prior], {odd.key: odd}, ENVIRONMENTS, [make_refutation(prior, MISLED, distance=math.inf)])
    assert grade_workloads([OWN], known, ENVIRONMENT, {})[0].grade is Grade.COLD


def test_another_cluster_is_not_concerned() -> None:
    near = record(NEAR)
    refutation = make_refutation(near, MISLED, distance=0.0)
    match = lookup([near], [refutation], COUSIN)
    assert (match.grade, prior_ids(match)) == (Grade.ANCHOR, [near.id])
    assert "refuted" not in match.reason


@pytest.mark.parametrize(("environment", "counts"), [(ENVIRONMENT, True), (OLD_TVM, True), (OTHER_ISA, False)])
def test_it_counts_where_the_hard_fields_agree(environment: Environment, counts: bool) -> None:
    near = record(NEAR)
    match = lookup([near], [make_refutation(near, OWN, environment_key=environment_key(environment))])
    assert match.grade is (Grade.COLD if counts else Grade.CLUSTER)


def test_without_siblings_left_the_main_block_is_next() -> None:
    siblings, cousin = [record(NEAR), record(NEAR), record(FAR)], record(COUSIN)
    match = lookup([*siblings, cousin], [make_refutation(r, OWN) for r in siblings])
    assert (match.grade, prior_ids(match)) == (Grade.ANCHOR, [cousin.id])
    assert match.reason == (
        "no record of this workload; 1 workload with its main block known, nearest at distance 0.0; "
        "3 priors refuted by run ab12cd34"
    )


def test_a_refuted_sibling_does_not_come_back_by_its_main_block() -> None:
    own, sibling = (make_workload(f"long-{n}", cluster="l", anchor="a", extents=(16, 64, n)) for n in (8, 64))
    assert own.distance(sibling) > own.anchor_distance(sibling)
    prior = record(sibling)
    misled = dataclasses.replace(MISLED, cluster=own.cluster)
    refutation = make_refutation(prior, misled, distance=own.distance(sibling))
    (match,) = grade_workloads([own], Known([prior], {sibling.key: sibling}, ENVIRONMENTS, [refutation]), ENVIRONMENT, {})
    assert (match.grade, match.priors) == (Grade.COLD, ())
    assert match.reason == "no record of this workload; 1 prior refuted by run ab12cd34"


def test_without_anything_left_it_is_cold_and_says_who_refuted_it() -> None:
    near, cousin = record(NEAR), record(COUSIN)
    first, second = make_refutation(near, OWN), make_refutation(cousin, OWN, run_id="newer678" * 4, created_at=2000.0)
    both = lookup([near, cousin], [first, second])
    assert (both.grade, both.priors) == (Grade.COLD, ())
    assert both.reason == "no record of this workload; 2 priors refuted by run newer678 and 1 other"
    only = lookup([cousin], [second])
    assert only.reason == "no record of this workload or a sibling; 1 prior refuted by run newer678"


def test_what_was_ignored_is_still_said() -> None:
    near = record(NEAR)
    match = lookup([near, record(FAR, environment=OTHER_ISA)], [make_refutation(near, OWN)])
    assert match.reason.startswith("no record of this workload; 1 prior refuted by run ab12cd34; 1 record ignored: isa ")


def test_a_record_of_its_own_is_never_refuted() -> None:
    own, near, far = record(OWN, depth=8), record(NEAR), record(FAR)
    refutations = [make_refutation(own, OWN, distance=0.0), make_refutation(near, OWN)]
    stale = lookup([own, near, far], refutations)
    assert (stale.grade, prior_ids(stale)) == (Grade.STALE, [own.id, far.id])
    assert stale.reason == ("only measured, not published; searched for 8 trials, 32 asked; 1 prior refuted by run ab12cd34")
    sibling = lookup([own], refutations, MISLED)
    assert (sibling.grade, prior_ids(sibling)) == (Grade.CLUSTER, [own.id])
    published = own.with_state(RecordState.PUBLISHED)
    exact = lookup([published, near], refutations, asked=8)
    assert (exact.grade, exact.record) == (Grade.EXACT, published)
    assert "refuted" not in exact.reason


def test_the_same_schedule_of_another_run_is_the_same_prior() -> None:
    near = record(NEAR)
    again = dataclasses.replace(near, run_id="another run", run_times_s=(0.9e-3,))
    other = record(NEAR, 2.0)
    match = lookup([near, again, other], [make_refutation(near, OWN)])
    assert prior_ids(match) == [other.id]
    assert match.reason.endswith("; 1 prior refuted by run ab12cd34")


def test_a_refutation_of_what_is_not_known_means_nothing() -> None:
    near = record(NEAR)
    assert lookup([near], [make_refutation(record(FAR), OWN)]) == lookup([near], [])


records = st.lists(st.builds(record, st.sampled_from(list(WORKLOADS.values())), st.sampled_from([1.0, 2.0, 3.0])), max_size=16)


@st.composite
def knowledge(draw: st.DrawFn) -> tuple[list[TuningRecord], list[Refutation]]:
    """Records, and refutations of some of them."""
    found = draw(records)
    if not found:
        return [], []
    refutation = st.builds(
        make_refutation,
        st.sampled_from(found),
        st.sampled_from(list(WORKLOADS.values())),
        distance=st.sampled_from([0.0, 1.0, 2.0, math.inf]),
        environment_key=st.sampled_from(list(ENVIRONMENTS)),
        run_id=st.sampled_from(["one", "two", "three"]),
        created_at=st.sampled_from([1.0, 2.0]),
    )
    return found, draw(st.lists(refutation, max_size=12))


def is_refuted(found: TuningRecord, refutations: Sequence[Refutation]) -> bool:
    """The rule, told anew: whether OWN may not be diffused from the record."""
    workload = WORKLOADS[found.workload_key]
    distance = OWN.distance(workload) if workload.cluster == OWN.cluster else OWN.anchor_distance(workload)
    return workload != OWN and any(
        r.record_id == found.id
        and r.workload_key != found.workload_key
        and r.environment_key != environment_key(OTHER_ISA)
        and (r.workload_key == OWN.key or (r.cluster == OWN.cluster and r.distance <= distance))
        for r in refutations
    )


@given(knowledge(), st.randoms())
def test_refuting_is_like_not_knowing(known: tuple[list[TuningRecord], list[Refutation]], random: Any) -> None:
    found, refutations = known
    match = lookup(found, refutations)
    usable = [r for r in found if not is_refuted(r, refutations)]
    without = lookup(usable, [])
    assert (match.grade, match.record, match.priors) == (without.grade, without.record, without.priors)
    assert "\n" not in match.reason
    if usable == found:
        assert match == without
    random.shuffle(found)
    random.shuffle(refutations)
    assert lookup(found, refutations) == match


@pytest.fixture
def priors(registry: Registry) -> list[TuningRecord]:
    """Two stored records of NEAR; the other workloads are stored as well."""
    registry.put_workloads(list(WORKLOADS.values()))
    key = registry.put_environment(ENVIRONMENT)
    kept = [make_record(NEAR, key, decisions=(("SampleCategorical", n),)) for n in range(2)]
    registry.keep(kept)
    return kept


def grades(registry: Registry, *workloads: Workload) -> list[Grade]:
    return [match.grade for match in registry.lookup(workloads, ENVIRONMENT, {})]


def test_the_registry_remembers_and_forgets(registry: Registry, catalog: SqlCatalog, priors: list[TuningRecord]) -> None:
    registry.refute([make_refutation(prior, MISLED, distance=MISLED.distance(NEAR), created_at=0.0) for prior in priors])
    assert [r.created_at for r in catalog.find_refutations([OWN.cluster])] == [5000.0, 5000.0]
    assert grades(registry, MISLED, OWN, FAR, COUSIN) == [Grade.COLD, Grade.CLUSTER, Grade.CLUSTER, Grade.ANCHOR]
    (match,) = registry.lookup([MISLED], ENVIRONMENT, {})
    assert match.reason == "no record of this workload; 2 priors refuted by run ab12cd34"
    registry.forget_refutations([priors[0].id])
    (match,) = registry.lookup([MISLED], ENVIRONMENT, {})
    assert [prior.record for prior in match.priors] == priors[:1]
    registry.forget_refutations([prior.id for prior in priors])
    assert grades(registry, MISLED) == [Grade.CLUSTER]


def test_refutations_of_an_environment_without_records(registry: Registry, priors: list[TuningRecord]) -> None:
    for environment, grade in ((OTHER_ISA, Grade.CLUSTER), (OLD_TVM, Grade.COLD)):
        key = registry.put_environment(environment)
        registry.refute([make_refutation(prior, OWN, environment_key=key) for prior in priors])
        assert grades(registry, OWN) == [grade]


@pytest.mark.parametrize(
    "changes", [{"distance": -1.0}, {"distance": math.nan}, {"ratio": 1.0}, {"ratio": 0.5}, {"ratio": math.nan}]
)
def test_what_did_not_mislead_is_not_refuted(
    registry: Registry, catalog: SqlCatalog, priors: list[TuningRecord], changes: dict[str, float]
) -> None:
    with pytest.raises(MeasureError, match="is not refuted"):
        registry.refute([make_refutation(priors[0], OWN), make_refutation(priors[1], OWN, **changes)])
    assert catalog.find_refutations([OWN.cluster]) == []


def test_what_is_not_stored_is_not_refuted(registry: Registry, catalog: SqlCatalog, priors: list[TuningRecord]) -> None:
    with pytest.raises(NotFound):
        registry.refute([make_refutation(priors[0], OWN), make_refutation(priors[1], OWN, record_id=hex_of("none"))])
    assert catalog.find_refutations([OWN.cluster]) == []
    registry.refute([])


@pytest.fixture
def selects(catalog: SqlCatalog) -> Iterator[list[str]]:
    """The tables that were read, query by query."""
    tables: list[str] = []

    def note(*arguments: Any) -> None:
        if arguments[2].startswith("SELECT"):
            tables.append(re.findall(r"FROM (bcd_\w+)", arguments[2])[-1])

    event.listen(catalog._engine, "before_cursor_execute", note)
    yield tables
    event.remove(catalog._engine, "before_cursor_execute", note)


def test_refutations_cost_a_lookup_one_query(registry: Registry, priors: list[TuningRecord], selects: list[str]) -> None:
    for environment in (OLD_TVM, OTHER_ISA):
        key = registry.put_environment(environment)
        registry.keep([make_record(FAR, key)])
        registry.refute([make_refutation(prior, MISLED, environment_key=key) for prior in priors])
    selects.clear()
    registry.lookup([OWN, MISLED, FAR, COUSIN], ENVIRONMENT, {})
    assert len(selects) <= 6
    assert selects.count("bcd_refutations") == 1


def test_without_candidates_they_are_not_asked_for(registry: Registry, selects: list[str]) -> None:
    assert grades(registry, OWN) == [Grade.COLD]
    assert selects == ["bcd_workloads"] * 2
