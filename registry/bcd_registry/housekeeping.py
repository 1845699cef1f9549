"""Keeping house: what can go, and what the registry holds and was good for."""

from __future__ import annotations

import itertools
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import ConfigError, NotFound
from .model import BlobInfo, Grade, Json
from .registry import Registry

KEEP = 8
"""Records of a workload and environment that stay, the best ones, unless told otherwise."""

KEEP_MODELS = 3
"""Cost models of a target that stay, the newest ones."""

GRACE_S = 24 * 3600.0
"""How long a blob that nothing names stays, unless told otherwise: its row may be on the way."""

LEAST_GRACE_S = 2 * 3600.0
"""Less is not safe: putting a blob again makes it new only when it is older than an hour, see `BlobStore.put`."""

RUNS_READ = 1000
"""Runs whose reports are added up, the newest ones: a report has some 50 KB."""

_REMOVED_AT_ONCE = 500
_LOOKED_AT = 1000


@dataclass(frozen=True, slots=True)
class Garbage:
    """What can go, or what went.

    Attributes:
        records: Ids of records that enough better ones beat.
        blobs: What nothing names and is older than the grace time.
        n_waiting: Blobs that nothing names and that are younger.
        trace_bytes: Of what can go: bytes, estimated, of the records' traces, which go once they are older than the grace
            time as well. Of what went: 0, since `blobs` has them.
        cost_models: Ids of cost models that enough newer ones of their target follow.
        model_bytes: Of what can go: the bytes of these models; like `trace_bytes`.
    """

    records: tuple[str, ...]
    blobs: tuple[BlobInfo, ...]
    n_waiting: int
    trace_bytes: int = 0
    cost_models: tuple[str, ...] = ()
    model_bytes: int = 0

    @property
    def blob_bytes(self) -> int:
        """Bytes of the blobs."""
        return sum(blob.size for blob in self.blobs)

    def as_json(self) -> dict[str, Json]:
        """Plain JSON, ids and digests included."""
        return {
            "records": list(self.records),
            "trace_bytes": self.trace_bytes,
            "cost_models": list(self.cost_models),
            "model_bytes": self.model_bytes,
            "blobs": [blob.digest for blob in self.blobs],
            "blob_bytes": self.blob_bytes,
            "waiting": self.n_waiting,
        }


def find_garbage(
    registry: Registry, *, keep: int = KEEP, grace_s: float = GRACE_S, clock: Callable[[], float] = time.time
) -> Garbage:
    """What `collect_garbage` would remove; nothing is changed.

    Raises:
        ConfigError: See `collect_garbage`.
        RegistryError: The registry cannot be used.
    """
    _require_safe(keep, grace_s)
    beaten = registry.beaten_records(keep)
    traces = _some_traces(registry, beaten)
    models = registry.outdated_cost_models(KEEP_MODELS)
    of_models = set(itertools.chain.from_iterable(models.values()))
    before, named = clock() - grace_s, registry.named_blobs()
    blobs: list[BlobInfo] = []
    n_waiting = trace_bytes = model_bytes = 0
    for blob in registry.iter_blobs():
        trace_bytes += blob.size if blob.digest in traces else 0
        model_bytes += blob.size if blob.digest in of_models else 0
        if blob.digest in named:
            continue
        if blob.modified_at < before:
            blobs.append(blob)
        else:
            n_waiting += 1
    scale = len(beaten) / min(len(beaten), _LOOKED_AT) if beaten else 0.0
    return Garbage(tuple(beaten), tuple(blobs), n_waiting, round(trace_bytes * scale), tuple(models), model_bytes)


def collect_garbage(
    registry: Registry, *, keep: int = KEEP, grace_s: float = GRACE_S, clock: Callable[[], float] = time.time
) -> Garbage:
    """Remove beaten records and outdated cost models, then the blobs that no row names; returns what went.

    Writers may be at work. A record goes only if it is beaten, and its network not pinned, in the transaction that removes
    it. A blob goes only if it was old and unnamed, and is still old when its turn comes: one that is put
    again meanwhile, for a row to come, is new. So the order matters: rows, the blobs, then the names, then a second look.

    Args:
        keep: Records that stay of each workload and environment; those that a pinned network uses all stay.
        grace_s: Seconds that an unnamed blob stays, by the store's own times: its clock must not be hours from this one.
        clock: Unix seconds.

    Raises:
        ConfigError: `keep` is below 1, or `grace_s` is shorter than a publish may take.
        RegistryError: The registry cannot be used; what is removed by then is garbage all the same.
    """
    _require_safe(keep, grace_s)
    beaten: list[str] = []
    for ids in _batches(registry.beaten_records(keep), _REMOVED_AT_ONCE):
        beaten += registry.remove_beaten(ids, keep)
    models = tuple(registry.outdated_cost_models(KEEP_MODELS))
    registry.remove_cost_models(models)
    before = clock() - grace_s
    old = {blob.digest for blob in registry.iter_blobs() if blob.modified_at < before}
    named = registry.named_blobs()
    gone: list[BlobInfo] = []
    n_waiting = 0
    for blob in registry.iter_blobs():
        if blob.digest in named:
            continue
        if blob.digest in old and blob.modified_at < before:
            registry.delete_blob(blob.digest)
            gone.append(blob)
        else:
            n_waiting += 1
    return Garbage(tuple(beaten), tuple(gone), n_waiting, cost_models=models)


@dataclass(frozen=True, slots=True)
class Statistics:
    """What the registry holds, and what the reports of its runs add up to.

    Attributes:
        rows: By kind, see `Catalog.count_rows`.
        runs_read: Runs whose reports are in the figures below: the newest ones.
        trials: Their measurements.
        tuning_s: Their seconds of tuning.
        grades: Tasks by the grade that the lookup gave them.
        causes: Tasks that were not exact, by what kept them from it.
        saved_trials: Trials that the registry saved (estimated).
        saved_s: Seconds that the registry saved (estimated), of the runs that could tell.
        runs_without_estimate: Those that could not: there was no earlier run to go by.
    """

    rows: Mapping[str, int]
    n_blobs: int
    blob_bytes: int
    runs_read: int
    trials: int
    tuning_s: float
    grades: Mapping[str, int]
    causes: Mapping[str, int]
    saved_trials: int
    saved_s: float
    runs_without_estimate: int

    def as_json(self) -> dict[str, Json]:
        """Plain JSON."""
        return {
            "rows": dict(self.rows),
            "blobs": {"count": self.n_blobs, "bytes": self.blob_bytes},
            "runs": {"read": self.runs_read, "trials": self.trials, "tuning_s": self.tuning_s},
            "tasks": {"by_grade": dict(self.grades), "not_exact_by_cause": dict(self.causes)},
            "saved": {
                "estimated": True,
                "trials": self.saved_trials,
                "seconds": self.saved_s,
                "runs_without_estimate": self.runs_without_estimate,
            },
        }


def read_statistics(registry: Registry, *, n_runs: int = RUNS_READ) -> Statistics:
    """Count rows and blobs, and add up the reports of the newest runs.

    Raises:
        RegistryError: The registry cannot be used.
    """
    n_blobs = blob_bytes = 0
    for blob in registry.iter_blobs():
        n_blobs, blob_bytes = n_blobs + 1, blob_bytes + blob.size
    runs = registry.list_runs(limit=n_runs)
    tasks = [task for run in runs for task in _items(run.report, "tasks")]
    grades = Counter(str(task.get("grade", "unknown")) for task in tasks)
    misses = (task for task in tasks if task.get("grade") != Grade.EXACT)
    savings = [_table(run.report, "saving") for run in runs]
    return Statistics(
        rows=registry.counts(),
        n_blobs=n_blobs,
        blob_bytes=blob_bytes,
        runs_read=len(runs),
        trials=sum(run.trials for run in runs),
        tuning_s=sum(run.tuning_s for run in runs),
        grades={grade: grades[grade] for grade in (*Grade, *sorted(set(grades) - set(Grade))) if grades[grade]},
        causes=dict(Counter(miss_cause(str(task.get("note", ""))) for task in misses).most_common()),
        saved_trials=sum(saving.get("trials") or 0 for saving in savings),
        saved_s=sum(saving.get("seconds") or 0.0 for saving in savings),
        runs_without_estimate=sum(saving.get("seconds") is None for saving in savings),
    )


_CAUSES: tuple[tuple[str, str], ...] = (
    (r"the registry was not asked", "the registry was not asked"),
    (r"measured .+ ago, older than ", "too old: a prior only"),
    (r"drifted: ", "drifted: a prior only"),
    (r"\d+ records? ignored: (\w+)", "other {}: not usable"),
    (r"(\w+)\S* .+ then, .+ now$", "other {}: a prior only"),
    (r"only \w+, not published", "measured, not published"),
    (r"search was cut short", "search was cut short"),
    (r"searched for \d+ trials, \d+ asked", "searched less deep"),
    (r"\d+ priors? refuted by run", "its priors misled"),
    (r"no record of this workload, a sibling or its main block", "nothing like it known"),
    (r"no record of this workload or a sibling", "only its main block known"),
    (r"no record of this workload", "only siblings known"),
)
"""What `lookup` writes into a match's reason, and what it counts as: the first that holds for any part of the reason."""


def miss_cause(note: str) -> str:
    """What kept a task from being exact, from the note in its report: one of a few phrases, so that they can be counted."""
    parts = note.split("; ")
    for pattern, cause in _CAUSES:
        for part in parts:
            if match := re.match(pattern, part):
                return cause.format(*match.groups())
    return "not known"


def _require_safe(keep: int, grace_s: float) -> None:
    if keep < 1:
        raise ConfigError(f"{keep} records cannot be kept", hint="keep 1 or more of each workload and environment")
    if grace_s < LEAST_GRACE_S:
        hint = f"writers may be at work: {LEAST_GRACE_S / 3600:.0f} h or more"
        raise ConfigError(f"a grace time of {grace_s / 3600:.3g} h is too short", hint=hint)


def _some_traces(registry: Registry, ids: Sequence[str]) -> set[str]:
    """The traces of the records, of some spread evenly when they are many."""
    digests = set()
    for record_id in _spread(ids, _LOOKED_AT):
        try:
            digests.add(registry.trace_digest(record_id))
        except NotFound:  # removed meanwhile
            continue
    return digests


def _spread(ids: Sequence[str], n: int) -> list[str]:
    return list(ids) if len(ids) <= n else [ids[i * len(ids) // n] for i in range(n)]


def _batches(ids: Iterable[str], size: int) -> Iterator[list[str]]:
    remaining = iter(ids)
    while batch := list(itertools.islice(remaining, size)):
        yield batch


def _table(report: Json, name: str) -> Mapping[str, Any]:
    """A table of a report that may be of another release."""
    found = report.get(name) if isinstance(report, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _items(report: Json, name: str) -> list[Mapping[str, Any]]:
    found = report.get(name) if isinstance(report, Mapping) else None
    return [item for item in found if isinstance(item, Mapping)] if isinstance(found, list) else []
