from __future__ import annotations

import math
from typing import Any

import pytest
import tvm_ffi
from tvm.s_tir import Schedule

from bcd_registry.model import Decision
from bcd_tuner.diffusion import CATEGORICAL, LOCATION, TILE, Site
from bcd_tuner.space import DesignSpace, Fit, apply_decisions, match_space, read_decisions, read_space
from tests.tuner import tuning_programs as programs

PROGRAMS = {
    "matmul": programs.matmul(16, 16, 16),
    "relu": programs.relu(8, 16),
    "softmax": programs.softmax(16, 16),
    "total": programs.total(8, 2),
    "convolution": programs.convolution(8, 8),
}


def spaces_of(mod: Any) -> tuple[list[DesignSpace], list[Any]]:
    context, schedules = programs.context_of(mod)
    return [read_space(schedule) for schedule in schedules], list(context.space_generator.postprocs)


def sampled(mod: Any, space: DesignSpace, postprocs: list[Any], seed: int) -> Any:
    schedule = apply_decisions(mod, space, [None] * len(space.sites), postprocs, seed)
    assert schedule is not None
    return schedule


@pytest.mark.parametrize("name", PROGRAMS)
def test_decisions_come_back_as_they_were_applied(name: str) -> None:
    mod = PROGRAMS[name]
    spaces, postprocs = spaces_of(mod)
    for space in spaces:
        for seed in (1, 2, 3):
            schedule = sampled(mod, space, postprocs, seed)
            sketch, decisions = read_decisions(schedule)
            assert sketch == space.sketch
            assert [kind for kind, _ in decisions] == [site.kind for site in space.sites]
            again = apply_decisions(mod, space, decisions, postprocs, seed + 100)
            assert again is not None
            assert read_decisions(again) == (sketch, decisions)
            assert tvm_ffi.structural_equal(again.mod, schedule.mod)


def test_sites_say_what_can_be_decided() -> None:
    [space, *_], _ = spaces_of(PROGRAMS["convolution"])
    tiles = [site for site in space.sites if site.kind == TILE]
    assert [(site.extent, site.n) for site in tiles] == [(1, 4), (8, 4), (8, 4), (8, 4), (4, 2), (3, 2), (3, 2)]
    assert {site.max_innermost for site in tiles} == {64}
    [choice] = [site for site in space.sites if site.kind == CATEGORICAL]
    assert choice.extent == 4
    assert sum(choice.probabilities) == pytest.approx(1.0)
    assert space.sites[-1].kind == LOCATION


def test_a_sketch_is_the_same_for_other_extents_and_differs_from_the_others() -> None:
    small, _ = spaces_of(programs.matmul(16, 16, 16))
    large, _ = spaces_of(programs.matmul(64, 32, 128))
    assert [space.sketch for space in small] == [space.sketch for space in large]
    assert len({space.sketch for space in small}) == len(small)


@pytest.mark.parametrize(("name", "size"), [("relu", 1), ("total", 20)])
def test_small_spaces_are_listed(name: str, size: int) -> None:
    spaces, _ = spaces_of(PROGRAMS[name])
    listed = [(i, row) for i, space in enumerate(spaces) for row in space.enumerate()]
    assert len(listed) == len(set(listed)) == size == sum(space.size for space in spaces)


def test_nobody_counts_compute_locations() -> None:
    spaces, _ = spaces_of(PROGRAMS["softmax"])
    assert {space.size for space in spaces} == {float("inf")}


def test_decisions_that_do_not_fit_are_refused() -> None:
    mod = PROGRAMS["matmul"]
    [space, *_], postprocs = spaces_of(mod)
    good: tuple[Decision, ...] = ((TILE, (2, 2, 2, 2)), (TILE, (1, 4, 2, 2)), (TILE, (4, 4)), (CATEGORICAL, 1))
    assert apply_decisions(mod, space, good, postprocs, 1) is not None
    for bad in ((TILE, (2, 2, 2)), (TILE, (2, 2, 2, 2, 1)), (CATEGORICAL, 1)):
        assert apply_decisions(mod, space, (bad, *good[1:]), postprocs, 1) is None
    assert apply_decisions(mod, space, (*good[:3], (CATEGORICAL, 9)), postprocs, 1) is None


def test_a_tile_that_does_not_divide_is_mended_and_read_back_as_it_is() -> None:
    mod = PROGRAMS["matmul"]
    [space, *_], postprocs = spaces_of(mod)
    others: tuple[Decision, ...] = ((TILE, (1, 4, 2, 2)), (TILE, (4, 4)), (CATEGORICAL, 1))
    for wrong in ((1, 2, 2, 2), (4, 2, 2, 2), (2, 2, 3, 2)):
        schedule = apply_decisions(mod, space, ((TILE, wrong), *others), postprocs, 1)
        assert schedule is not None
        _, (tile, *rest) = read_decisions(schedule)
        assert tuple(rest) == others
        assert isinstance(tile[1], tuple)
        assert math.prod(tile[1]) == 16


def test_a_prior_fits_the_space_of_its_sketch_else_one_of_its_shapes() -> None:
    spaces, _ = spaces_of(PROGRAMS["matmul"])
    decisions: tuple[Decision, ...] = ((TILE, (2, 2, 2, 2)), (TILE, (1, 4, 2, 2)), (TILE, (4, 4)), (CATEGORICAL, 1))
    for index, space in enumerate(spaces):
        assert match_space(spaces, space.sketch, decisions) == Fit(index, decisions, nearest=False)
    assert match_space(spaces, "f" * 64, decisions) == Fit(0, decisions, nearest=False)


def test_a_prior_of_another_sketch_fits_the_nearest_space_as_far_as_it_goes() -> None:
    spaces, _ = spaces_of(PROGRAMS["matmul"])
    decisions: tuple[Decision, ...] = ((TILE, (2, 2, 2, 2)), (TILE, (1, 4, 2, 2)), (TILE, (4, 4)), (CATEGORICAL, 1))
    assert match_space(spaces, "f" * 64, decisions[:3]) == Fit(0, (*decisions[:3], None), nearest=True)
    other = ((TILE, (2, 2, 4)), *decisions[1:])
    assert match_space(spaces, "f" * 64, other) == Fit(0, (None, *decisions[1:]), nearest=True)
    longer = (("SampleComputeLocation", -1), *decisions, (TILE, (2, 2, 2)))
    assert match_space(spaces, "f" * 64, longer) == Fit(0, decisions, nearest=True)


def test_a_prior_without_a_tile_in_common_fits_nothing() -> None:
    spaces, _ = spaces_of(PROGRAMS["matmul"])
    assert match_space(spaces, "f" * 64, ((TILE, (2, 2, 4)), (CATEGORICAL, 1))) is None
    assert match_space([], "f" * 64, ()) is None


def test_a_sketch_taken_by_name_must_have_the_same_kinds_of_decisions() -> None:
    spaces, _ = spaces_of(PROGRAMS["matmul"])
    other: tuple[Decision, ...] = ((CATEGORICAL, 1), (CATEGORICAL, 1), (CATEGORICAL, 1), (CATEGORICAL, 1))
    assert match_space(spaces, spaces[0].sketch, other) is None


def test_a_tile_without_a_bound_is_bounded_by_its_extent() -> None:
    schedule = Schedule(PROGRAMS["matmul"])
    loop, *_ = schedule.get_loops(schedule.get_sblock("block_0"))
    factors = schedule.sample_perfect_tile(loop, n=2, max_innermost_factor=-1)
    schedule.split(loop, factors)
    assert read_space(schedule).sites == (Site(TILE, 16, 2, 16),)
