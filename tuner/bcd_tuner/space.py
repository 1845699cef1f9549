"""Design spaces of one task: their sampling sites, applying decisions to them, and reading decisions back."""

from __future__ import annotations

import difflib
import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import Trace

from bcd_registry.model import Decision, digest_of

from .diffusion import CATEGORICAL, LOCATION, TILE, Site, factorizations, site_shapes

_SAMPLING = (TILE, CATEGORICAL, LOCATION)
_DECISION = re.compile(r", decision=(\[[^\]]*\]|-?\d+)")

_Shapes = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class DesignSpace:
    """One sketch of a task.

    Attributes:
        sketch: Hex SHA-256 of the simplified trace without decisions.
        instructions: All instructions of the simplified trace.
        sampling: Those that sample, in order, one for each site.
    """

    sketch: str
    instructions: tuple[Any, ...]
    sampling: tuple[Any, ...]
    sites: tuple[Site, ...]

    @property
    def shapes(self) -> _Shapes:
        """The shapes of its sites, in order."""
        return tuple(site.shape for site in self.sites)

    @property
    def size(self) -> float:
        """Number of distinct decisions; infinite with a compute location, whose choices only the compiler knows."""
        return math.prod((_site_size(site) for site in self.sites), start=1.0)

    def enumerate(self) -> Iterator[tuple[Decision, ...]]:
        """Every combination of decisions of a space of finite size."""
        return itertools.product(*(_site_decisions(site) for site in self.sites))


def _site_size(site: Site) -> float:
    if site.kind == TILE:
        return len(factorizations(site.extent, site.n, site.max_innermost)) if site.extent <= 4096 else math.inf
    return site.extent if site.kind == CATEGORICAL else math.inf


def _site_decisions(site: Site) -> list[Decision]:
    if site.kind == TILE:
        rows = factorizations(site.extent, site.n, site.max_innermost)
        return [(TILE, tuple(int(f) for f in row)) for row in rows]
    return [(CATEGORICAL, index) for index in range(site.extent)]


def read_space(schedule: Schedule) -> DesignSpace:
    """The design space that a schedule of the space generator stands for."""
    trace = schedule.trace.simplified(remove_postproc=True)
    instructions = tuple(trace.insts)
    sampling = tuple(i for i in instructions if str(i.kind.name) in _SAMPLING)
    sites = tuple(_read_site(i, _read_decision(trace, i)) for i in sampling)
    return DesignSpace(_sketch_of(trace), instructions, sampling, sites)


def _read_site(instruction: Any, decision: Decision) -> Site:
    kind, value = decision
    if isinstance(value, tuple):
        extent, bound = math.prod(value), int(instruction.attrs[1])
        return Site(TILE, extent, len(value), bound if bound > 0 else extent)  # -1 bounds nothing
    if kind == CATEGORICAL:
        weights = np.array([float(p.value) for p in instruction.attrs[1]])
        return Site(CATEGORICAL, len(weights), probabilities=tuple(weights / weights.sum()))
    return Site(LOCATION, 0)


def _read_decision(trace: Trace, instruction: Any) -> Decision:
    decision = trace.get_decision(instruction)
    value = tuple(int(f) for f in decision) if hasattr(decision, "__len__") else int(decision)
    return (str(instruction.kind.name), value)


def _sketch_of(trace: Trace) -> str:
    return digest_of(*(_DECISION.sub("", str(line)) for line in trace.as_python()))


def read_decisions(schedule: Schedule) -> tuple[str, tuple[Decision, ...]]:
    """The sketch and the decisions of a schedule that was tuned, postprocessing left out."""
    trace = schedule.trace.simplified(remove_postproc=True)
    return _sketch_of(trace), _decisions_in(trace)


def decisions_of(schedule: Schedule) -> tuple[Decision, ...]:
    """The decisions alone."""
    return _decisions_in(schedule.trace.simplified(remove_postproc=True))


def _decisions_in(trace: Trace) -> tuple[Decision, ...]:
    return tuple(_read_decision(trace, i) for i in trace.insts if str(i.kind.name) in _SAMPLING)


def apply_decisions(
    mod: Any, space: DesignSpace, decisions: Sequence[Decision | None], postprocs: Sequence[Any], seed: int
) -> Schedule | None:
    """A schedule of `mod` with the decisions taken and postprocessed; an open decision (None) is sampled by TVM.

    TVM mends the factors of a tile that do not divide the extent: what was decided is what `read_decisions` says.

    Returns:
        None when the decisions do not fit the workload or a postprocessor refuses them.
    """
    taken = {
        i: list(d[1]) if isinstance(d[1], tuple) else d[1]
        for i, d in zip(space.sampling, decisions, strict=True)
        if d is not None
    }
    schedule = Schedule(mod, seed=seed)
    try:
        Trace(list(space.instructions), taken).apply_to_schedule(schedule, remove_postproc=True)
        schedule.enter_postproc()
        return schedule if all(p.apply(schedule) for p in postprocs) else None
    except (RuntimeError, ValueError, TypeError, IndexError):  # a ScheduleError: these decisions do not fit here
        return None


@dataclass(frozen=True, slots=True)
class Fit:
    """How decisions taken elsewhere fit a design space.

    Attributes:
        space: Its index.
        decisions: One for each of its sites; None where nothing was decided.
        nearest: Neither its sketch nor its shapes are the same: only some decisions found a place.
    """

    space: int
    decisions: tuple[Decision | None, ...]
    nearest: bool


def match_space(spaces: Sequence[DesignSpace], sketch: str, decisions: Sequence[Decision]) -> Fit | None:
    """The space that decisions taken elsewhere fit: of the same sketch, else of the same shapes, else the nearest one.

    The nearest is the one where the most sites find a decision of their shape, in order; None when no tile finds one.
    """
    shapes = site_shapes(decisions)
    fitting = [i for i, space in enumerate(spaces) if space.shapes == shapes]
    same = next((i for i in fitting if spaces[i].sketch == sketch), fitting[0] if fitting else None)
    if same is not None:
        return Fit(same, tuple(decisions), nearest=False)
    fits = [Fit(i, _aligned(space.shapes, shapes, decisions), nearest=True) for i, space in enumerate(spaces)]
    best = max(fits, key=lambda fit: _share_decided(fit.decisions), default=None)
    return best if best and any(d is not None and d[0] == TILE for d in best.decisions) else None


def _aligned(ours: _Shapes, theirs: _Shapes, decisions: Sequence[Decision]) -> tuple[Decision | None, ...]:
    """Their decisions at our sites: those of the longest common runs of shapes."""
    placed: list[Decision | None] = [None] * len(ours)
    for block in difflib.SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks():
        placed[block.a : block.a + block.size] = decisions[block.b : block.b + block.size]
    return tuple(placed)


def _share_decided(decisions: Sequence[Decision | None]) -> float:
    return sum(d is not None for d in decisions) / len(decisions) if decisions else 0.0
