"""Modes of the product itself: v1, (c) cold, (d) warm, its ablations, and (e) guesses without a trial."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bcd_registry.blobs.local import LocalBlobs
from bcd_registry.catalog.sql import SqlCatalog
from bcd_registry.errors import ConfigError, CostModelError
from bcd_registry.model import Grade, NetworkSpec, PriorSource, canonical_json
from bcd_registry.registry import Registry
from bcd_tuner.cost_model import FEATURE_WIDTH
from bcd_tuner.environment import current_environment
from bcd_tuner.latency_model import LatencyModel
from bcd_tuner.light_import import import_intrinsics
from bcd_tuner.prepare import prepare, read_and_lower
from bcd_tuner.report import ProgressEvent, TaskReport, TuneReport
from bcd_tuner.search import SearchPolicy
from bcd_tuner.session import TuneRequest, tune
from bcd_tuner.targets import canonical_target, resolve_target
from bcd_tuner.workers import WarmPool

from .guess import Guess, guess_tasks
from .outcome import Winners, check_in_turns, end_to_end, measure_untuned
from .parts import needs_first
from .results import Job, Point, Result
from .stock import threads_of

Changes = Mapping[str, Any]

ABLATIONS: Mapping[str, tuple[Changes, Changes]] = {
    "full-warm": ({}, {}),
    "full-cold": ({}, {}),
    "without-diffusion": ({}, {"diffusion": False}),
    "without-pretraining": ({"pretrain": False}, {}),
    "without-fine-tuning": ({"fine_tune": False}, {}),
    "without-control": ({}, {"control_share": 0.0}),
    "without-clusters": ({"clustering": "none"}, {}),
    "clusters-by-sketch": ({"clustering": "sketch"}, {}),
    "clusters-by-operator": ({"clustering": "operator"}, {}),
}
"""What each changes of the request and of the search policy."""


class Missing(Exception):
    """The engine lacks a switch that a mode needs."""


def first_version(job: Job) -> Result:
    """Fill the registry that (d), (e) and the ablations start from."""
    assert job.first is not None
    shutil.rmtree(job.home, ignore_errors=True)
    with open_home(Path(job.home)) as registry:
        return _tuned(dataclasses.replace(job, torch="", onnx=""), "v1", TuneRequest(job.first, seed=job.seed), registry)


def cold(job: Job) -> Result:
    """Mode (c): an empty registry."""
    with empty_home() as registry:
        return _tuned(job, "c", TuneRequest(job.second, seed=job.seed), registry)


def warm(job: Job) -> Result:
    """Mode (d): the registry holds the earlier version."""
    with copy_of(job.home) as registry:
        return _tuned(job, "d", TuneRequest(job.second, seed=job.seed), registry)


def ablated(job: Job, name: str) -> Result:
    """Mode (d) or (c) with a part of the method left out or replaced.

    Raises:
        Missing: The engine has no such switch.
    """
    request = changed_request(TuneRequest(job.second, seed=job.seed), *ABLATIONS[name])
    with copy_of(job.home) if needs_first(name) else empty_home() as registry:
        return _tuned(job, name, request, registry)


def changed_request(request: TuneRequest, changes: Changes, policy: Changes) -> TuneRequest:
    """The request with an ablation's changes.

    Raises:
        Missing: The engine has no such switch.
    """
    wanted = {**changes, **({"policy": _changed(SearchPolicy(), policy)} if policy else {})}
    changed: TuneRequest = _changed(request, wanted)
    return changed


def _changed(value: Any, changes: Changes) -> Any:
    lacking = changes.keys() - {field.name for field in dataclasses.fields(value)}
    if lacking:
        raise Missing(f"{type(value).__name__} has no {', '.join(sorted(lacking))}")
    try:
        return dataclasses.replace(value, **changes)
    except (ConfigError, ValueError) as error:
        raise Missing(f"{type(value).__name__} takes no {dict(changes)}: {error}") from error


def _tuned(job: Job, mode: str, request: TuneRequest, registry: Registry) -> Result:
    """One run of the product, then the network as the registry now gives it, beside the others."""
    report = tune(request, registry, progress=_told)
    equal, runs, remarks = report.checked, {}, ""
    if report.checked:
        equal, runs, remarks = _end_to_end(job, request.spec, registry)
    return Result(
        pair=job.pair,
        seed=job.seed,
        mode=mode,
        trials=report.trials,
        depth=report.depth,
        n_tasks=len(report.tasks),
        curve=tuple((p.seconds, p.trials, p.estimated_ms) for p in report.curve),
        checked_untuned_ms=report.latency_ms.estimated_untuned,
        checked_ms=report.latency_ms.estimated_tuned,
        equal=equal,
        end_to_end=runs,
        time_s=dataclasses.asdict(report.time_s),
        counts=dict(Counter(str(task.grade) for task in report.tasks)),
        saved_ms=saved_ms(report),
        n_wrong=sum("failed its check" in task.note for task in report.tasks),
        notes=tuple(note for note in (*report.notes, remarks) if note),
    )


def _end_to_end(job: Job, spec: NetworkSpec, registry: Registry) -> Any:
    """The network from its published records: what the next user of the registry gets."""
    target = resolve_target(spec.target)
    network, lowered = read_and_lower(spec, target, _quiet)
    environment = current_environment(target, WarmPool.default_measurement())
    prepared = prepare(network, lowered, registry, environment, trials=spec.trials, fresh=False)
    return end_to_end(job, network, lowered, prepared.reused, threads_of(target))


def saved_ms(report: TuneReport) -> dict[str, float]:
    """Milliseconds that the network lost, by where the schedules came from: weighted sums over the tasks."""
    saved: defaultdict[str, float] = defaultdict(float)
    for task in report.tasks:
        if task.before_ms is not None and task.after_ms is not None:
            saved[_origin(task)] += task.weight * (task.before_ms - task.after_ms)
    return dict(saved)


def _origin(task: TaskReport) -> str:
    if task.grade is Grade.EXACT:
        return "exact"
    return {PriorSource.REGISTRY: "diffused", PriorSource.RUN: "sibling", PriorSource.NONE: "searched"}[task.prior]


def guessed(job: Job) -> Result:
    """Mode (e): exact records, and for every other task one guess that nobody measures before it is used."""
    target = resolve_target(job.second.target)
    with WarmPool(target) as pool, copy_of(job.home) as registry, ThreadPoolExecutor(threads_of(target)) as executor:
        import_intrinsics(target.kind.name)
        network, lowered = read_and_lower(job.second, target, _quiet)
        environment = current_environment(target, pool.measurement)
        began = time.monotonic()
        prepared = prepare(network, lowered, registry, environment, trials=job.second.trials, fresh=False)
        model = _model_of(registry, canonical_json(canonical_target(target)), job.seed)
        guesses = guess_tasks(prepared, target, model, executor, job.seed)
        took_s = time.monotonic() - began
        # From here on things are measured, to say how good the guesses were.
        ranked = {key: [guess.schedule] for key, guess in guesses.items() if guess.schedule is not None}
        untuned_s = measure_untuned(pool, lowered.tasks)
        winners = check_in_turns(pool, lowered.tasks, ranked, untuned_s, seed=job.seed, measured=False)
        untuned_ms, checked_ms = winners.estimates_ms(lowered.tasks)
        equal, runs, remarks = end_to_end(job, network, lowered, winners.schedules, threads_of(target))
        curve: tuple[Point, ...] = ((0.0, 0, untuned_ms), (took_s, 0, checked_ms))
        weights = {item.task.workload.key: item.task.weight for item in lowered.tasks}
        return Result(
            pair=job.pair,
            seed=job.seed,
            mode="e",
            trials=0,
            depth=job.second.trials,
            n_tasks=len(lowered.tasks),
            curve=curve,
            checked_untuned_ms=untuned_ms,
            checked_ms=checked_ms,
            equal=equal,
            end_to_end=runs,
            time_s={"search": took_s, "build": 0.0, "run": 0.0, "other": 0.0},
            counts=dict(Counter(guess.origin for guess in guesses.values())),
            saved_ms=_saved_by(guesses, winners, weights),
            n_wrong=winners.n_wrong,
            notes=(remarks,) if remarks else (),
        )


def _saved_by(guesses: Mapping[str, Guess], winners: Winners, weights: Mapping[str, int]) -> dict[str, float]:
    saved: defaultdict[str, float] = defaultdict(float)
    for key, guess in guesses.items():
        saved[guess.origin] += 1e3 * weights[key] * (winners.untuned_s[key] - winners.latency_s[key])
    return dict(saved)


def _model_of(registry: Registry, target: str, seed: int) -> LatencyModel:
    """The cost model that v1 left; an empty one when there is none that can be used."""
    model, snapshot = LatencyModel(seed=seed), registry.latest_cost_model(target)
    if snapshot is not None:
        try:
            model.pretrain(snapshot, FEATURE_WIDTH)
        except CostModelError as error:
            raise Missing(f"v1's cost model: {error.message}") from error
    return model


@contextmanager
def open_home(home: Path) -> Iterator[Registry]:
    """The registry in a folder, made when it is not there."""
    home.mkdir(parents=True, exist_ok=True)
    catalog = SqlCatalog.open_file(home / "catalog.db")
    with Registry(catalog, LocalBlobs(home / "blobs"), on_close=catalog.close) as registry:
        yield registry


@contextmanager
def empty_home() -> Iterator[Registry]:
    """A registry that knows nothing and is thrown away."""
    with tempfile.TemporaryDirectory() as folder, open_home(Path(folder, "home")) as registry:
        yield registry


@contextmanager
def copy_of(home: str) -> Iterator[Registry]:
    """A copy of a registry that is thrown away, so that every mode finds what v1 left and nothing else.

    Raises:
        Missing: v1 was not tuned.
    """
    if not Path(home, "catalog.db").exists():
        raise Missing(f"no registry in {home}: v1 comes first")
    with tempfile.TemporaryDirectory() as folder:
        copied = shutil.copytree(home, Path(folder, "home"))
        with open_home(Path(copied)) as registry:
            yield registry


def _told(event: ProgressEvent) -> None:
    """A line for the log: an hour without one looks like a hang."""
    figures = "" if event.estimated_ms is None else f"{event.trials} trials, {event.estimated_ms:.4g} ms"
    print(f"{event.elapsed_s:.0f} s", event.phase, event.message or figures, flush=True)


def _quiet(phase: str, message: str) -> None:
    """Nobody watches."""
