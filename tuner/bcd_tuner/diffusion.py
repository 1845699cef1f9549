"""Bayesian code diffusion on sampling decisions: Eq. 5 of the paper, its σ schedule, and the projection on valid decisions.

numpy only. A decision of a perfect tile with n factors lives in R^n as θ: the logarithms of its factors less the even split,
in units of a typical spread, so that shrinking by sqrt(1 - σ²) pulls towards the even split and not towards factor 1.
Source: Jeong and Lee, "Bayesian Code Diffusion for Efficient Automatic Deep Learning Program Optimization", OSDI 2025.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bcd_registry.model import Decision

TILE = "SamplePerfectTile"
CATEGORICAL = "SampleCategorical"
LOCATION = "SampleComputeLocation"

SIGMAS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7)
"""The ladder of σ that candidates of one round are drawn with."""

_MAX_FACTORIZATIONS = 20_000
_MIN_SPREAD = 0.7


@dataclass(frozen=True, slots=True)
class Site:
    """One sampling instruction of a design space.

    Attributes:
        kind: TILE, CATEGORICAL or LOCATION.
        extent: The loop's extent for a tile; the number of choices for a categorical; 0 for a location.
        n: Number of factors of a tile; 0 otherwise.
        max_innermost: Largest last factor of a tile.
        probabilities: Of the choices of a categorical.
    """

    kind: str
    extent: int
    n: int = 0
    max_innermost: int = 0
    probabilities: tuple[float, ...] = ()

    @property
    def shape(self) -> tuple[str, int]:
        """What two sites must share for a decision of one to mean something at the other."""
        return (self.kind, self.n)


def site_shapes(decisions: Sequence[Decision]) -> tuple[tuple[str, int], ...]:
    """The shapes of the sites that the decisions were taken at."""
    return tuple((kind, len(value) if isinstance(value, tuple) else 0) for kind, value in decisions)


@functools.lru_cache(maxsize=4096)
def divisors(extent: int) -> tuple[int, ...]:
    """All divisors, ascending."""
    small = [d for d in range(1, math.isqrt(extent) + 1) if extent % d == 0]
    return tuple(sorted({*small, *(extent // d for d in small)}))


@functools.lru_cache(maxsize=4096)
def count_factorizations(extent: int, n: int) -> int:
    """Number of ordered factorizations of `extent` into `n` factors."""
    count, rest, prime = 1, extent, 2
    while prime * prime <= rest:
        power = 0
        while rest % prime == 0:
            rest //= prime
            power += 1
        count *= math.comb(power + n - 1, n - 1)
        prime += 1
    return count * (n if rest > 1 else 1)


@functools.lru_cache(maxsize=1024)
def factorizations(extent: int, n: int, max_innermost: int) -> NDArray[np.int64]:
    """Every ordered factorization whose last factor is at most `max_innermost`: int64, (n_valid, n).

    A single factor is the extent, whatever the bound.
    """
    if n == 1:
        return np.array([[extent]], dtype=np.int64)

    def expand(rest: int, left: int) -> list[tuple[int, ...]]:
        if left == 1:
            return [(rest,)]
        return [(*head, last) for last in divisors(rest) for head in expand(rest // last, left - 1)]

    rows = [(*head, last) for last in divisors(extent) if last <= max_innermost for head in expand(extent // last, n - 1)]
    return np.array(rows, dtype=np.int64).reshape(-1, n)


@functools.lru_cache(maxsize=1024)
def _log_factorizations(extent: int, n: int, max_innermost: int) -> NDArray[np.float64]:
    return np.log(factorizations(extent, n, max_innermost).astype(np.float64))


def spread_of(extent: int, n: int) -> float:
    """Typical standard deviation of one log factor: that of a uniform split of log(extent) over n places, at least 0.7."""
    total = math.log(extent)
    return max(_MIN_SPREAD, total * math.sqrt((n - 1) / (n * n * (n + 1))) if n > 1 else 0.0)


def move_mode(factors: Sequence[int], extent: int) -> NDArray[np.float64]:
    """The prior's factors carried to another extent, as log factors (float64, (n,)) that sum to log(extent).

    The outer factor takes the change, and the inner tiles stay; when it cannot, the inner ones shrink in proportion.
    """
    logs = np.log(np.asarray(factors, dtype=np.float64))
    logs[0] += math.log(extent) - logs.sum()
    if logs[0] < 0.0 < (inner := float(logs[1:].sum())):
        logs[1:] *= math.log(extent) / inner
        logs[0] = 0.0
    return logs


def diffuse_tile(
    factors: Sequence[int], site: Site, sigmas: NDArray[np.float64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Eq. 5 for one tile and many candidates, then the nearest valid factorization.

    Args:
        factors: The prior's factors, outermost first.
        site: The member's site; its extent may differ from the product of `factors`.
        sigmas: float64, (n_candidates,).
        rng: Source of ε.

    Returns:
        int64, (n_candidates, n).
    """
    mode = move_mode(factors, site.extent)
    even, spread = math.log(site.extent) / site.n, spread_of(site.extent, site.n)
    theta = (mode - even) / spread
    noise = rng.standard_normal((len(sigmas), site.n))
    column = sigmas[:, None]
    drawn = (np.sqrt(1.0 - column**2) * theta + column * noise) * spread + even
    drawn += (math.log(site.extent) - drawn.sum(axis=1, keepdims=True)) / site.n
    return project_tiles(drawn, site)


def project_tiles(logs: NDArray[np.float64], site: Site) -> NDArray[np.int64]:
    """The valid factorization nearest to each row of log factors: float64 (m, n) to int64 (m, n)."""
    if count_factorizations(site.extent, site.n) > _MAX_FACTORIZATIONS:
        return np.array([_project_greedily(row, site) for row in logs], dtype=np.int64)
    table = _log_factorizations(site.extent, site.n, site.max_innermost)
    distances = (table**2).sum(axis=1)[None, :] - 2.0 * logs @ table.T
    nearest: NDArray[np.int64] = factorizations(site.extent, site.n, site.max_innermost)[distances.argmin(axis=1)]
    return nearest


def _project_greedily(logs: NDArray[np.float64], site: Site) -> list[int]:
    """Innermost first, each factor the nearest divisor of what is left."""
    rest, factors = site.extent, []
    for place in range(site.n - 1, 0, -1):
        bound = site.max_innermost if place == site.n - 1 else rest
        choice = min((d for d in divisors(rest) if d <= bound), key=lambda d: abs(math.log(d) - logs[place]))
        factors.append(choice)
        rest //= choice
    return [rest, *reversed(factors)]


def diffuse(
    prior: Sequence[Decision | None], sites: Sequence[Site], sigmas: NDArray[np.float64], rng: np.random.Generator
) -> list[tuple[Decision | None, ...]]:
    """Candidates around a prior's decisions, one for each σ (Eq. 5).

    An unordered choice has no Gaussian: it is kept, or with probability σ drawn anew. A compute location is then left open
    (None), since only the compiler knows the valid ones.

    Args:
        prior: Decisions taken at sites of the same shapes as `sites`; None leaves a site open.
        sites: The member's design space.
        sigmas: float64, (n_candidates,), each in [0, 1].
        rng: Source of ε.
    """
    columns: list[list[Decision | None]] = []
    for decision, site in zip(prior, sites, strict=True):
        columns.append([None] * len(sigmas) if decision is None else _diffuse_site(decision[1], site, sigmas, rng))
    if not columns:
        return [() for _ in sigmas]
    return list(zip(*columns, strict=True))


def _diffuse_site(
    value: int | tuple[int, ...], site: Site, sigmas: NDArray[np.float64], rng: np.random.Generator
) -> list[Decision | None]:
    if isinstance(value, tuple):
        return [(TILE, tuple(row)) for row in diffuse_tile(value, site, sigmas, rng).tolist()]
    return [_redraw(value, site, redraw, rng) for redraw in rng.random(len(sigmas)) < sigmas]


def _redraw(value: int, site: Site, redraw: bool, rng: np.random.Generator) -> Decision | None:
    if site.kind == LOCATION:
        return None if redraw else (LOCATION, value)
    if redraw or value >= site.extent:
        return (CATEGORICAL, int(rng.choice(site.extent, p=site.probabilities)))
    return (CATEGORICAL, value)


class SigmaSchedule:
    """σ_{s,t}: a distribution over `SIGMAS` that starts from the distance to the prior and follows the measurements.

    Not safe to share between threads.
    """

    def __init__(self, distance: float) -> None:
        """Start around σ = 0.1 at distance 0, wider with the distance (in octaves of extents) to the prior."""
        center = math.log(min(0.5, 0.12 + 0.1 * distance))
        logits = -((np.log(SIGMAS) - center) ** 2) / (2 * 0.7**2)
        self._weights = np.exp(logits - logits.max())

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """float64, (len(SIGMAS),); every σ keeps a share of at least 3%."""
        floor = 0.03
        share: NDArray[np.float64] = self._weights / self._weights.sum()
        return floor + (1 - floor * len(SIGMAS)) * share

    def draw(self, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """`n` values of σ: float64, (n,)."""
        return rng.choice(np.array(SIGMAS), size=n, p=self.probabilities)

    def update(self, sigmas: Sequence[float], scores: Sequence[float]) -> None:
        """Move weight to the σ whose measured candidates did better than the round's mean.

        Args:
            sigmas: σ of each measured candidate.
            scores: best latency of the round over the candidate's latency, in [0, 1].
        """
        if not scores:
            return
        mean = sum(scores) / len(scores)
        for sigma, score in zip(sigmas, scores, strict=True):
            self._weights[SIGMAS.index(sigma)] *= math.exp(0.5 * (score - mean))
        self._weights /= self._weights.max()
