from __future__ import annotations

import itertools
import math
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from bcd_tuner.clustering import Clustering, clusters_of, expected_untuned_s, group_by_cluster, heavy_tasks, representative
from tests.tuner.planned_tasks import make_task

COSTS = st.lists(st.floats(1e3, 1e10), min_size=1, max_size=12)


def test_expected_seconds_grow_with_operations_and_never_vanish() -> None:
    seconds = [expected_untuned_s(make_task("t", flops=flops).workload) for flops in (0.0, 1e6, 1e9)]
    assert seconds == sorted(seconds)
    assert seconds[0] > 0.0


def test_tasks_are_grouped_in_the_order_of_first_appearance() -> None:
    tasks = [make_task("a", cluster="x"), make_task("b", cluster="y"), make_task("c", cluster="x")]
    groups = group_by_cluster(tasks, {t.workload.key: t.workload.cluster for t in tasks})
    assert [[t.name for t in members] for members in groups.values()] == [["a", "c"], ["b"]]


def test_tasks_are_siblings_by_signature_sketch_operator_or_not_at_all() -> None:
    tasks = [make_task("a", cluster="x"), make_task("b", cluster="x"), make_task("c", cluster="y")]
    tasks[1] = replace(tasks[1], workload=replace(tasks[1].workload, op="softmax"))
    sketches = {"a": "one", "b": "two", "c": "two"}

    def joined(clustering: Clustering) -> list[list[str]]:
        clusters = clusters_of(tasks, clustering, lambda task: sketches[task.name])
        return [[t.name for t in members] for members in group_by_cluster(tasks, clusters).values()]

    assert joined(Clustering.SIGNATURE) == [["a", "b"], ["c"]]
    assert joined(Clustering.SKETCH) == [["a"], ["b", "c"]]
    assert joined(Clustering.OPERATOR) == [["a", "c"], ["b"]]
    assert joined(Clustering.NONE) == [["a"], ["b"], ["c"]]


def test_the_representative_is_near_the_costly_ones() -> None:
    cheap = [make_task(f"cheap {i}", extents=(8, 8, 8), flops=1e3) for i in range(5)]
    costly = [make_task(f"costly {i}", extents=(256, 256, 240 + 16 * i), flops=1e9) for i in range(3)]
    assert representative([*cheap, *costly]).name == "costly 1"


def test_weight_counts_as_cost() -> None:
    often = make_task("often", extents=(8, 8, 8), flops=1e8, weight=100)
    once = make_task("once", extents=(64, 64, 64), flops=1e9)
    assert representative([often, once]).name == "often"


def test_it_lies_in_the_middle_of_equals() -> None:
    tasks = [make_task(str(n), extents=(n, 16, 16)) for n in (8, 16, 32, 64, 128)]
    assert representative(tasks).name == "32"


def test_a_member_with_another_number_of_loops_is_far_but_harmless() -> None:
    tasks = [make_task("a"), make_task("b", extents=(16, 32)), make_task("c")]
    assert representative(tasks).name in {"a", "c"}


def test_it_does_not_depend_on_the_order() -> None:
    tasks = [make_task(str(i), extents=(2**i, 16, 16), flops=10.0 ** (i % 3 + 5)) for i in range(5)]
    assert len({representative(list(order)).workload.key for order in itertools.permutations(tasks)}) == 1


def test_of_one_it_is_that_one() -> None:
    assert representative([make_task("only")]).name == "only"


@settings(deadline=None)
@given(costs=COSTS, share=st.floats(0.05, 0.99))
def test_heavy_tasks_are_the_fewest_that_make_up_their_share(costs: list[float], share: float) -> None:
    tasks = [make_task(str(i), flops=flops) for i, flops in enumerate(costs)]
    seconds = {t.workload.key: expected_untuned_s(t.workload) for t in tasks}
    heavy = heavy_tasks(tasks, share)
    total = math.fsum(seconds.values())
    assert math.fsum(seconds[k] for k in heavy) >= share * total * (1 - 1e-9)
    lightest = min(seconds[k] for k in heavy)
    assert math.fsum(seconds[k] for k in heavy) - lightest < share * total * (1 + 1e-9)
    assert all(seconds[k] <= lightest for k in seconds if k not in heavy)


def test_no_tasks_are_no_heavy_tasks() -> None:
    assert heavy_tasks([]) == set()
