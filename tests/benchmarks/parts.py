"""The parts that the benchmark runs in: which comparison in which, and what each lacks. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .networks import PAIRS
from .results import Result

FULL_WARM, FULL_COLD = "full-warm", "full-cold"

VARIANTS: Mapping[str, str] = {
    "without-diffusion": FULL_WARM,
    "without-pretraining": FULL_WARM,
    "without-fine-tuning": FULL_WARM,
    "without-control": FULL_WARM,
    "without-clusters": FULL_COLD,
    "clusters-by-sketch": FULL_COLD,
    "clusters-by-operator": FULL_COLD,
}
"""Ablations, and what each is compared with: (d) or (c), run once more in the sitting of the ablations.

The clusters of a run matter to cold tasks, so those of clustering begin with an empty registry.
"""

_ABLATION_MODES = (FULL_WARM, FULL_COLD, *VARIANTS)
_NEEDS_FIRST = {"d", "e", FULL_WARM, *(name for name, base in VARIANTS.items() if base == FULL_WARM)}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Modes of one network and seed that run one after the other.

    Attributes:
        modes: In the order in which they run, v1 left out: it runs before the first that needs its registry.
        minutes: Expected, to sort comparisons into parts.
    """

    pair: str
    seed: int
    modes: tuple[str, ...]
    minutes: int

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.pair} seed {self.seed}"


def _compared(name: str, seed: int, minutes: int) -> Comparison:
    return Comparison(name, seed, PAIRS[name].modes(seed), minutes)


def _ablated(name: str, seed: int, minutes: int) -> Comparison:
    return Comparison(name, seed, _ABLATION_MODES, minutes)


PARTS: tuple[tuple[Comparison, ...], ...] = (
    (_compared("det", 0, 130),),
    (_compared("det", 1, 130),),
    (_compared("det", 2, 130),),
    (_compared("bert", 0, 60), _compared("bert", 1, 12)),
    (_compared("bert", 2, 12), _compared("rec", 0, 45), _compared("resnet", 0, 30), _compared("magika", 0, 10)),
    (_compared("mobilenet", 0, 120),),
    (_ablated("bert", 0, 30), _ablated("mobilenet", 0, 30)),
)


def needs_first(mode: str) -> bool:
    """Whether a mode starts from what v1 left."""
    return mode in _NEEDS_FIRST


def missing_modes(comparison: Comparison, results: Sequence[Result]) -> list[str]:
    """Modes of a comparison without a result, in their order."""
    done = {result.key for result in results}
    return [mode for mode in comparison.modes if (comparison.pair, comparison.seed, mode) not in done]


def is_whole(comparison: Comparison, results: Sequence[Result]) -> bool:
    """Whether all of its modes that were measured were measured in one sitting."""
    own = [r for r in results if (r.pair, r.seed) == (comparison.pair, comparison.seed) and r.mode in comparison.modes]
    return len({r.facts.get("sitting") for r in own}) <= 1
