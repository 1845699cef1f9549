from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bcd_registry.model import Decision
from bcd_tuner.diffusion import (
    CATEGORICAL,
    LOCATION,
    SIGMAS,
    TILE,
    SigmaSchedule,
    Site,
    count_factorizations,
    diffuse,
    diffuse_tile,
    divisors,
    factorizations,
    move_mode,
    project_tiles,
    site_shapes,
    spread_of,
)

HUGE = 2**10 * 3**5 * 5**3 * 7**2  # ten thousand times more factorizations than are listed
PRIMES = (2, 3, 5, 7, 97, 8191, 104_729)

extents = st.integers(1, 600) | st.sampled_from([1, 768, 1000, 1024, 3136, *PRIMES])
places = st.integers(1, 5)
bounds = st.sampled_from([1, 2, 16, 64, 10**9])


def tile(extent: int, n: int = 4, max_innermost: int = 64) -> Site:
    return Site(TILE, extent, n, max_innermost)


def brute_force(extent: int, n: int, max_innermost: int) -> list[tuple[int, ...]]:
    small = [d for d in range(1, extent + 1) if extent % d == 0]
    rows = itertools.product(small, repeat=n - 1)
    full = [(extent // math.prod(row), *row) for row in rows if extent % math.prod(row) == 0]
    return [row for row in full if row[-1] <= max_innermost or n == 1]


def assert_valid(rows: np.ndarray[tuple[int, ...], np.dtype[np.int64]], site: Site) -> None:
    assert rows.shape[1] == site.n
    assert (rows.prod(axis=1) == site.extent).all()
    assert (rows >= 1).all()
    assert site.n == 1 or (rows[:, -1] <= site.max_innermost).all()


@settings(deadline=None)
@given(extent=st.integers(1, 60), n=places, bound=bounds)
def test_factorizations_are_all_and_each_once(extent: int, n: int, bound: int) -> None:
    found = [tuple(int(f) for f in row) for row in factorizations(extent, n, bound)]
    assert sorted(found) == sorted(brute_force(extent, n, bound))


@settings(deadline=None)
@given(extent=extents, n=places)
def test_their_number_is_known_without_listing_them(extent: int, n: int) -> None:
    if count_factorizations(extent, n) < 20_000:
        assert count_factorizations(extent, n) == len(factorizations(extent, n, extent))


@settings(deadline=None)
@given(extent=extents)
def test_divisors(extent: int) -> None:
    assert list(divisors(extent)) == [d for d in range(1, extent + 1) if extent % d == 0]


@settings(deadline=None)
@given(
    extent=st.integers(1, 96),
    n=st.integers(1, 4),
    bound=bounds,
    row=st.lists(st.floats(-3, 8), min_size=4, max_size=4),
)
def test_the_projection_is_the_nearest_valid_decision(extent: int, n: int, bound: int, row: list[float]) -> None:
    logs = np.array([row[:n]])
    [found] = project_tiles(logs, tile(extent, n, bound))
    nearest = min(((np.log(other) - logs[0]) ** 2).sum() for other in brute_force(extent, n, bound))
    assert ((np.log(found) - logs[0]) ** 2).sum() == pytest.approx(nearest, abs=1e-9)


@settings(deadline=None)
@given(
    extent=extents | st.just(HUGE),
    n=places,
    bound=bounds,
    prior=st.lists(st.sampled_from([1, 2, 3, 8, 13, 100]), min_size=5, max_size=5),
    seed=st.integers(0, 99),
)
def test_a_diffused_tile_is_always_valid(extent: int, n: int, bound: int, prior: list[int], seed: int) -> None:
    site = tile(extent, n, bound)
    sigmas = np.array([0.0, 0.05, 0.7, 1.0])
    assert_valid(diffuse_tile(prior[:n], site, sigmas, np.random.default_rng(seed)), site)


@settings(deadline=None)
@given(factors=st.lists(st.sampled_from([1, 2, 3, 4, 7, 16]), min_size=1, max_size=4))
def test_without_noise_a_prior_of_the_same_extent_is_kept(factors: list[int]) -> None:
    site = tile(math.prod(factors), len(factors))
    [found] = diffuse_tile(factors, site, np.zeros(1), np.random.default_rng(0))
    assert list(found) == factors


@pytest.mark.parametrize("factors", [(HUGE // 96, 2, 3, 16), (1, HUGE // 64, 1, 64), (7, HUGE // 7 // 10, 5, 2)])
def test_without_noise_a_prior_is_kept_where_decisions_are_too_many_to_list(factors: tuple[int, ...]) -> None:
    [found] = diffuse_tile(factors, tile(HUGE), np.zeros(1), np.random.default_rng(0))
    assert tuple(found) == factors


@settings(deadline=None)
@given(
    inner=st.lists(st.sampled_from([1, 2, 4, 7]), min_size=1, max_size=3),
    outer=st.integers(1, 20),
    new_outer=st.integers(1, 20),
)
def test_inner_tiles_stay_while_they_divide(inner: list[int], outer: int, new_outer: int) -> None:
    extent = new_outer * math.prod(inner)
    [found] = diffuse_tile([outer, *inner], tile(extent, 1 + len(inner)), np.zeros(1), np.random.default_rng(0))
    assert list(found) == [new_outer, *inner]


@settings(deadline=None)
@given(factors=st.lists(st.integers(1, 300), min_size=1, max_size=5), extent=st.integers(1, 5000))
def test_a_moved_mode_has_the_new_extent_and_no_factor_below_one(factors: list[int], extent: int) -> None:
    mode = move_mode(factors, extent)
    assert mode.sum() == pytest.approx(math.log(extent), abs=1e-9)
    assert (mode >= -1e-9).all()


def test_an_extent_that_shrinks_below_the_inner_tiles_shrinks_them_in_proportion() -> None:
    assert np.exp(move_mode((4, 16, 16), 16)) == pytest.approx([1, 4, 4])
    assert np.exp(move_mode((4, 1, 1), 2)) == pytest.approx([2, 1, 1])
    assert np.exp(move_mode((4, 8, 8), 1)) == pytest.approx([1, 1, 1])


@pytest.mark.parametrize("sigma", [0.1, 0.3, 0.5])
def test_eq_5_has_its_mean_and_its_spread(sigma: float) -> None:
    """In a space so fine that the projection hardly moves anything: powers of two."""
    extent, factors = 2**40, (2**25, 2**15)
    site = tile(extent, 2, extent)
    rows = diffuse_tile(factors, site, np.full(8000, sigma), np.random.default_rng(7))
    logs = np.log(rows[:, 0].astype(np.float64))
    even = math.log(extent) / 2
    shrunk = math.sqrt(1 - sigma**2) * (math.log(factors[0]) - even) + even
    assert logs.mean() == pytest.approx(shrunk, abs=0.2)
    # the factors' sum is fixed, so half of the variance of two factors is left in each; rounding to powers of two adds a little
    variance = (sigma * spread_of(extent, 2)) ** 2 / 2 + math.log(2) ** 2 / 12
    assert logs.std() == pytest.approx(math.sqrt(variance), rel=0.05)


def test_full_noise_forgets_the_prior() -> None:
    site = tile(2**40, 2, 2**40)
    means = []
    for factors in ((2**40, 1), (1, 2**40)):
        rows = diffuse_tile(factors, site, np.ones(4000), np.random.default_rng(1))
        means.append(np.log2(rows[:, 0].astype(np.float64)).mean())
    assert means == pytest.approx([20.0, 20.0], abs=1.0)


def test_more_noise_goes_farther() -> None:
    site, factors, distances = tile(4096, 4), (8, 8, 8, 8), []
    for sigma in SIGMAS:
        rows = diffuse_tile(factors, site, np.full(500, sigma), np.random.default_rng(3))
        distances.append(np.abs(np.log2(rows / np.array(factors))).sum(axis=1).mean())
    assert distances == sorted(distances)
    assert distances[0] < 0.5 * distances[-1]


@pytest.mark.parametrize("extent", [97, 104_729])
def test_a_prime_goes_to_any_place_but_the_innermost(extent: int) -> None:
    site = tile(extent, 4, 64)
    rows = diffuse_tile((1, 1, 97, 1), site, np.full(500, 1.0), np.random.default_rng(0))
    assert_valid(rows, site)
    assert len(np.unique(rows, axis=0)) == 3


def test_an_extent_of_one_has_one_decision() -> None:
    rows = diffuse_tile((4, 2, 8), tile(1, 3), np.array(SIGMAS), np.random.default_rng(0))
    assert (rows == 1).all()


def test_a_huge_extent_is_valid_and_quick_to_project() -> None:
    site = tile(HUGE, 4, 64)
    assert count_factorizations(HUGE, 4) > 20_000
    rows = diffuse_tile((HUGE, 1, 1, 1), site, np.full(64, 0.5), np.random.default_rng(0))
    assert_valid(rows, site)
    assert len(np.unique(rows, axis=0)) > 32


SITES = (tile(64, 3), Site(CATEGORICAL, 4, probabilities=(0.1, 0.2, 0.3, 0.4)), Site(LOCATION, 0))
PRIOR: tuple[Decision, ...] = ((TILE, (4, 4, 4)), (CATEGORICAL, 2), (LOCATION, -1))


def test_without_noise_every_kind_of_decision_is_kept() -> None:
    assert diffuse(PRIOR, SITES, np.zeros(3), np.random.default_rng(0)) == [PRIOR] * 3


def test_an_unordered_choice_is_drawn_anew_with_probability_sigma() -> None:
    sigma, n = 0.5, 4000
    rows = diffuse(PRIOR, SITES, np.full(n, sigma), np.random.default_rng(0))
    choices = [row[1][1] for row in rows if row[1] is not None]
    assert len(choices) == n
    # redrawn half of the time, and three of ten redraws give the same choice again
    assert choices.count(2) / n == pytest.approx(0.5 + 0.5 * 0.3, abs=0.03)
    assert choices.count(3) / n == pytest.approx(0.5 * 0.4, abs=0.03)
    assert sum(row[2] is None for row in rows) / n == pytest.approx(sigma, abs=0.03)


def test_a_choice_that_the_member_does_not_have_is_drawn_anew() -> None:
    site = Site(CATEGORICAL, 2, probabilities=(0.5, 0.5))
    rows = diffuse([(CATEGORICAL, 7)], [site], np.zeros(50), np.random.default_rng(0))
    assert {row[0] for row in rows} == {(CATEGORICAL, 0), (CATEGORICAL, 1)}


def test_a_space_without_decisions_has_one_candidate() -> None:
    assert diffuse([], [], np.zeros(2), np.random.default_rng(0)) == [(), ()]


def test_a_prior_of_another_space_is_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        diffuse(PRIOR[:2], SITES, np.zeros(1), np.random.default_rng(0))


def test_shapes_tell_which_decisions_fit() -> None:
    assert site_shapes(PRIOR) == tuple(site.shape for site in SITES)


@pytest.mark.parametrize("distance", [0.0, 0.5, 3.0, 100.0, math.inf])
def test_the_schedule_is_a_distribution_with_a_floor(distance: float) -> None:
    schedule = SigmaSchedule(distance)
    for _ in range(300):
        shares = schedule.probabilities
        assert shares.sum() == pytest.approx(1.0)
        assert (shares >= 0.03 - 1e-12).all()
        schedule.update([SIGMAS[0], SIGMAS[-1]], [1.0, 0.0])
    assert schedule.probabilities[0] > 0.5
    assert schedule.probabilities[-1] == pytest.approx(0.03, abs=1e-3)


def test_a_far_prior_starts_with_more_noise() -> None:
    means = [float(SigmaSchedule(d).probabilities @ np.array(SIGMAS)) for d in (0.0, 1.0, 2.0, 4.0)]
    assert means == sorted(means)
    assert means[-1] > 1.5 * means[0]


def test_it_follows_what_was_measured_and_can_turn_back() -> None:
    schedule = SigmaSchedule(0.0)
    start = schedule.probabilities[-1]
    for _ in range(40):
        schedule.update(SIGMAS, [0.2, 0.2, 0.2, 0.2, 0.2, 1.0])
    assert schedule.probabilities[-1] > max(0.5, start)
    for _ in range(120):
        schedule.update(SIGMAS, [1.0, 0.2, 0.2, 0.2, 0.2, 0.2])
    assert schedule.probabilities[0] > 0.5


def test_equal_scores_and_empty_rounds_teach_nothing() -> None:
    schedule = SigmaSchedule(1.0)
    before = schedule.probabilities
    schedule.update([], [])
    schedule.update([0.05, 0.7], [0.4, 0.4])
    assert schedule.probabilities == pytest.approx(before)


def test_draws_follow_the_distribution() -> None:
    schedule = SigmaSchedule(0.0)
    drawn = schedule.draw(5000, np.random.default_rng(0))
    assert set(drawn) == set(SIGMAS)
    shares = [float((drawn == sigma).mean()) for sigma in SIGMAS]
    assert shares == pytest.approx(schedule.probabilities, abs=0.03)
