from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bcd_registry.lookup import MAX_OWN_PRIORS, MAX_PRIORS, Known, grade_workloads
from bcd_registry.model import Environment, Grade, Match, RecordState, TuningRecord, Workload
from bcd_registry.staleness import OnVersion, StalenessPolicy, environment_key
from bcd_registry.testing.values import ENVIRONMENT, make_environment, make_record, make_workload

KEY = environment_key(ENVIRONMENT)
OLD_TVM = make_environment(tvm="0.26.0")
OTHER_ISA = make_environment(isa=["sve"])
OWN = make_workload("own", cluster="c", anchor="a", extents=(16, 64))
NEAR = make_workload("near", cluster="c", anchor="a", extents=(16, 128))
FAR = make_workload("far", cluster="c", anchor="a", extents=(64, 256))
COUSIN = make_workload("cousin", cluster="d", anchor="a", extents=(16, 64, 3))
FAR_COUSIN = make_workload("far-cousin", cluster="f", anchor="a", extents=(64, 1024))
STRANGER = make_workload("stranger")
numbers = itertools.count()


def record(workload: Workload, ms: float = 1.0, environment: Environment = ENVIRONMENT, **changes: Any) -> TuningRecord:
    """A published record with a schedule of its own."""
    decisions = (("SampleCategorical", next(numbers)),)
    fields = {"state": RecordState.PUBLISHED, "decisions": decisions, "run_times_s": (ms * 1e-3,), **changes}
    return make_record(workload, environment_key(environment), **fields)


def known(records: Sequence[TuningRecord]) -> Known:
    workloads = {w.key: w for w in (OWN, NEAR, FAR, COUSIN, FAR_COUSIN, STRANGER)}
    environments = {environment_key(e): e for e in (ENVIRONMENT, OLD_TVM, OTHER_ISA)}
    used = {r.environment_key for r in records}
    return Known(records, workloads, {key: e for key, e in environments.items() if key in used})


def lookup(*records: TuningRecord, asked: int = 32) -> Match:
    (match,) = grade_workloads([OWN], known(records), ENVIRONMENT, {OWN.key: asked})
    return match


def prior_ids(match: Match) -> list[str]:
    return [prior.record.id for prior in match.priors]


def test_exact() -> None:
    slow, fast = record(OWN, 2.0, depth=64), record(OWN, 1.0, depth=32)
    match = lookup(record(OWN, 0.5, depth=16), slow, record(OWN, 0.4, state=RecordState.CHECKED), fast, record(NEAR))
    assert (match.grade, match.record, match.priors) == (Grade.EXACT, fast, ())
    assert match.reason == "published at 1 ms, searched for 32 trials, 32 asked"
    assert lookup(slow, fast, asked=64).record == slow


def test_notes_do_not_matter_for_exact() -> None:
    other = make_environment(cpu_model="Xeon", calibration_ms=1.0)
    (match,) = grade_workloads([OWN], known([record(OWN)]), other, {OWN.key: 32})
    assert match.grade is Grade.EXACT


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"depth": 16}, "searched for 16 trials, 32 asked"),
        ({"depth": 0, "trials": 12}, "search was cut short after 12 trials, 32 asked"),
        ({"state": RecordState.MEASURED}, "only measured, not published"),
        ({"state": RecordState.CHECKED, "depth": 8}, "only checked, not published; searched for 8 trials, 32 asked"),
        ({"environment": OLD_TVM}, "tvm 0.26.0 then, 0.27.0 now"),
        ({"environment": OLD_TVM, "depth": 16}, "tvm 0.26.0 then, 0.27.0 now; searched for 16 trials, 32 asked"),
    ],
)
def test_stale_says_what_is_missing(changes: dict[str, Any], reason: str) -> None:
    own, sibling = record(OWN, **changes), record(NEAR)
    match = lookup(sibling, own)
    assert (match.grade, match.record, match.reason) == (Grade.STALE, None, reason)
    assert [(p.record, p.workload, p.distance, p.grade) for p in match.priors] == [
        (own, OWN, 0.0, Grade.STALE),
        (sibling, NEAR, OWN.distance(NEAR), Grade.CLUSTER),
    ]


def test_the_reason_is_that_of_the_record_nearest_to_exact() -> None:
    match = lookup(record(OWN, environment=OLD_TVM), record(OWN, depth=8), record(OWN, state=RecordState.MEASURED))
    assert match.reason == "searched for 8 trials, 32 asked"


def test_no_depth_asked_is_always_deep_enough() -> None:
    (match,) = grade_workloads([OWN], known([record(OWN, depth=0)]), ENVIRONMENT, {})
    assert match.grade is Grade.EXACT


def test_own_priors_leave_room_for_the_cluster() -> None:
    own = [record(OWN, ms, state=RecordState.MEASURED) for ms in (3.0, 1.0, 2.0, 4.0)]
    near = [record(NEAR, ms) for ms in (2.0, 1.0, 3.0, 4.0, 5.0)]
    match = lookup(*own, *near)
    assert prior_ids(match) == [r.id for r in (own[1], own[2], own[0], near[1], near[0], near[2])]


def test_cluster() -> None:
    near, far = [record(NEAR, ms) for ms in (2.0, 1.0)], record(FAR, 0.1)
    match = lookup(far, *near, record(COUSIN))
    assert (match.grade, match.record) == (Grade.CLUSTER, None)
    assert match.reason == "no record of this workload; 2 siblings known, nearest at distance 0.7"
    assert prior_ids(match) == [near[1].id, near[0].id, far.id]
    assert {p.grade for p in match.priors} == {Grade.CLUSTER}
    assert [p.distance for p in match.priors] == sorted(p.distance for p in match.priors)


def test_the_nearest_gets_several_priors_and_four_workloads_get_one() -> None:
    siblings = [make_workload(f"s{i}", cluster="c", anchor="a", extents=(16, 64 * 2**i)) for i in range(1, 7)]
    records = [record(w, ms) for w in reversed(siblings) for ms in (1.0, 2.0, 3.0, 4.0)]
    everything = Known(records, {w.key: w for w in siblings}, {KEY: ENVIRONMENT})
    (match,) = grade_workloads([OWN], everything, ENVIRONMENT, {})
    assert [siblings.index(p.workload) for p in match.priors] == [0, 0, 0, 1, 2, 3]
    assert [p.record.median_s for p in match.priors] == pytest.approx([1e-3, 2e-3, 3e-3, 1e-3, 1e-3, 1e-3])


def test_medians_of_another_environment_are_compared_within_it() -> None:
    here = [record(NEAR, ms) for ms in (1.0, 1.5)]
    there = [record(NEAR, ms, environment=OLD_TVM) for ms in (10.0, 12.0)]
    assert prior_ids(lookup(*there, *here)) == [here[0].id, there[0].id, there[1].id, here[1].id]


def test_one_schedule_found_by_two_runs_is_one_prior() -> None:
    first = record(NEAR)
    again = record(NEAR, 1.1, decisions=first.decisions, run_id="run-2")
    assert prior_ids(lookup(again, first)) == [first.id]


def test_anchor() -> None:
    match = lookup(record(COUSIN), record(STRANGER))
    assert match.grade is Grade.ANCHOR
    assert (
        match.reason == "no record of this workload or a sibling; 1 workload with its main block known, nearest at distance 0.0"
    )
    assert [(p.workload, p.grade, p.distance) for p in match.priors] == [(COUSIN, Grade.ANCHOR, 0.0)]


def test_the_nearest_main_block_is_the_nearest_anchor_whatever_the_epilogue() -> None:
    match = lookup(record(FAR_COUSIN), record(COUSIN))
    assert [prior.workload for prior in match.priors] == [COUSIN, FAR_COUSIN]
    assert OWN.distance(COUSIN) == math.inf


def test_cold() -> None:
    for match in (lookup(), lookup(record(STRANGER))):
        assert (match.grade, match.record, match.priors) == (Grade.COLD, None, ())
        assert match.reason == "no record of this workload, a sibling or its main block"


def test_hard_differences_leave_a_record_out_and_say_so() -> None:
    ignored = "ignored: isa avx2+fma+sse4.2 only then, sve only now"
    here = make_environment(isa=["sve"])
    (cold,) = grade_workloads([OWN], known([record(OWN), record(OWN)]), here, {})
    assert (cold.grade, cold.priors) == (Grade.COLD, ())
    assert cold.reason == f"no record of this workload, a sibling or its main block; 2 records {ignored}"
    usable = record(NEAR, environment=OTHER_ISA)
    (cluster,) = grade_workloads([OWN], known([record(OWN), usable]), here, {})
    assert prior_ids(cluster) == [usable.id]
    assert cluster.reason == f"no record of this workload; 1 sibling known, nearest at distance 0.7; 1 record {ignored}"
    (anchor,) = grade_workloads([OWN], known([record(NEAR), record(COUSIN, environment=OTHER_ISA)]), here, {})
    assert anchor.grade is Grade.ANCHOR
    assert anchor.reason.endswith(f"; 1 record {ignored}")


def test_matches_come_in_the_order_of_the_workloads() -> None:
    matches = grade_workloads([STRANGER, OWN, NEAR, OWN], known([record(OWN)]), ENVIRONMENT, {})
    assert [m.workload for m in matches] == [STRANGER, OWN, NEAR, OWN]
    assert [m.grade for m in matches] == [Grade.COLD, Grade.EXACT, Grade.CLUSTER, Grade.EXACT]


records = st.builds(
    record,
    st.sampled_from([OWN, NEAR, FAR, COUSIN, STRANGER]),
    st.sampled_from([1.0, 2.0, 3.0]),
    st.sampled_from([ENVIRONMENT, OLD_TVM, OTHER_ISA]),
    state=st.sampled_from([RecordState.MEASURED, RecordState.CHECKED, RecordState.PUBLISHED]),
    depth=st.sampled_from([0, 16, 32, 64]),
)


@given(st.lists(records, max_size=24), st.sampled_from([16, 32, 64]), st.randoms())
def test_whatever_is_known(found: list[TuningRecord], asked: int, random: Any) -> None:
    match = lookup(*found, asked=asked)
    by_id = {r.id: r for r in found}
    usable = [r for r in found if r.environment_key != environment_key(OTHER_ISA)]
    assert (match.grade is Grade.EXACT) == (match.record is not None)
    assert bool(match.priors) == (match.grade not in (Grade.EXACT, Grade.COLD))
    assert (match.grade in (Grade.EXACT, Grade.STALE)) == any(r.workload_key == OWN.key for r in usable)
    assert len(match.priors) <= MAX_PRIORS
    assert sum(p.grade is Grade.STALE for p in match.priors) <= MAX_OWN_PRIORS
    assert len(set(prior_ids(match))) == len(match.priors)
    assert all(by_id[p.record.id] in usable for p in match.priors)
    assert [p.distance for p in match.priors] == sorted(p.distance for p in match.priors)
    assert match.reason
    assert "\n" not in match.reason
    if match.record is not None:
        assert match.record.state is RecordState.PUBLISHED
        assert match.record.depth >= asked
        assert match.record.environment_key == KEY
    random.shuffle(found)
    assert lookup(*found, asked=asked) == match


def judged(*records: TuningRecord, now_s: float = 0.0, **policy: Any) -> Match:
    (match,) = grade_workloads([OWN], known(records), ENVIRONMENT, {OWN.key: 32}, policy=StalenessPolicy(**policy), now_s=now_s)
    return match


def test_an_old_record_is_a_prior_only() -> None:
    old, young = record(OWN, 1.0, created_at=1000.0), record(OWN, 2.0, created_at=1500.0)
    assert judged(old, now_s=1100.0, max_age_s=100.0).record == old
    stale = judged(old, now_s=1101.0, max_age_s=100.0)
    assert (stale.grade, prior_ids(stale)) == (Grade.STALE, [old.id])
    assert stale.reason == "measured 1.683 min ago, older than 1.667 min"
    assert judged(old, young, now_s=1600.0, max_age_s=100.0).record == young


def test_a_drifted_record_is_a_prior_only() -> None:
    drifted, steady = record(OWN, 1.0, drift="20% slower"), record(OWN, 2.0)
    stale = lookup(drifted)
    assert (stale.grade, prior_ids(stale), stale.reason) == (Grade.STALE, [drifted.id], "drifted: 20% slower")
    assert lookup(drifted, steady).record == steady
    assert prior_ids(lookup(drifted, record(NEAR)))[0] == drifted.id
    assert lookup(record(NEAR, drift="slower")).grade is Grade.CLUSTER
    measured = record(OWN, 0.5, state=RecordState.MEASURED, depth=0)
    doubted = lookup(drifted, measured)
    assert (prior_ids(doubted)[0], doubted.reason) == (drifted.id, "drifted: 20% slower")


def test_another_version_is_a_prior_or_of_no_use_or_as_good() -> None:
    old = record(OWN, environment=OLD_TVM)
    difference = "tvm 0.26.0 then, 0.27.0 now"
    prior = judged(old, on_version=OnVersion.PRIOR)
    assert (prior.grade, prior.reason) == (Grade.STALE, difference)
    refused = judged(old, on_version=OnVersion.REFUSE)
    assert (refused.grade, refused.priors) == (Grade.COLD, ())
    assert refused.reason.endswith(f"; 1 record ignored: {difference}")
    assert judged(old, on_version=OnVersion.ACCEPT).record == old
