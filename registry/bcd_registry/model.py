"""Frozen values that the registry and the tuner exchange. No I/O, no tensor compiler."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .errors import ConfigError

KEY_SCHEME = 1
"""Version of the rules that turn a workload or an environment into a key."""

Json = Any
Decision = tuple[str, int | tuple[int, ...]]
"""One sampling decision: the instruction's kind (`SamplePerfectTile`, ...) and its factors or index."""

_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def canonical_json(value: Json) -> str:
    """The one spelling of a JSON value: sorted keys, no spaces, ASCII, no NaN."""
    return _CANONICAL.encode(value)


def digest_of(*parts: str | bytes) -> str:
    """Hex SHA-256 of the parts, each preceded by its length so that no two lists of parts collide."""
    sha = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        sha.update(len(data).to_bytes(8, "big"))
        sha.update(data)
    return sha.hexdigest()


class Grade(enum.StrEnum):
    """What the registry knows about a task when a run is planned, best first."""

    EXACT = "exact"
    STALE = "stale"
    CLUSTER = "cluster"
    ANCHOR = "anchor"
    COLD = "cold"


class RecordState(enum.StrEnum):
    """How far a record has come: only PUBLISHED is ever served as a result."""

    MEASURED = "measured"
    CHECKED = "checked"
    PUBLISHED = "published"
    QUARANTINED = "quarantined"


class EventKind(enum.StrEnum):
    """What was said of records after they were measured."""

    INVALIDATED = "invalidated"
    RESTORED = "restored"
    DRIFTED = "drifted"
    STEADY = "steady"


class PriorSource(enum.StrEnum):
    """Where a task's prior came from."""

    REGISTRY = "registry"
    RUN = "run"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Workload:
    """One TIR module with its extents, named by what it computes.

    Attributes:
        key: Hex SHA-256 of the scheme, the description and the layout-free inputs.
        cluster: Hex SHA-256 of the description without extents and access constants.
        anchor: The same over the main block only.
        extents: Every loop extent in the order of the description; siblings have equally many.
        flops: Floating-point (or integer) operations of one call.
        bytes_moved: Bytes of all inputs and outputs, each once.
        op: A short label for people, for example `conv2d+add+relu`; not in any key.
        description: The canonical JSON that the keys were made from.
        anchor_extents: Loop extents of the main block; workloads with one anchor signature have equally many.
    """

    key: str
    cluster: str
    anchor: str
    extents: tuple[int, ...]
    flops: float
    bytes_moved: float
    op: str
    description: str = field(repr=False)
    anchor_extents: tuple[int, ...] = ()

    def distance(self, other: Workload) -> float:
        """Root mean square of the log2 ratios of the extents; infinite when their number differs."""
        return _distance(self.extents, other.extents)

    def anchor_distance(self, other: Workload) -> float:
        """The same between the main blocks alone: what counts when the epilogues differ."""
        return _distance(self.anchor_extents, other.anchor_extents)


def _distance(ours: Sequence[int], theirs: Sequence[int]) -> float:
    if len(ours) != len(theirs):
        return math.inf
    if not ours:
        return 0.0
    squares = [math.log2(a / b) ** 2 for a, b in zip(ours, theirs, strict=True)]
    return math.sqrt(sum(squares) / len(squares))


@dataclass(frozen=True, slots=True)
class Relative:
    """A workload with records that may be served, as a lookup sees it before it reads them.

    Attributes:
        workload: Without its description.
        n_records: How many they are, by environment key.
    """

    workload: Workload
    n_records: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Environment:
    """What a latency depends on beside the workload.

    `staleness.FIELD_CLASSES` says which field is hard, soft or a note. Never in it: host name, path, time.

    Attributes:
        fields: Plain JSON values by field name.
    """

    fields: Mapping[str, Json]

    def as_json(self) -> dict[str, Json]:
        """A plain dictionary, sorted by name."""
        return dict(sorted(self.fields.items()))


@dataclass(frozen=True, slots=True)
class Task:
    """A workload as a network uses it.

    Attributes:
        name: The function's name in the lowered network; not in any key.
        weight: How many times the network calls it.
    """

    name: str
    workload: Workload
    weight: int


@dataclass(frozen=True, slots=True)
class NetworkSpec:
    """A network as the user names it: one version of a model, its fixed shapes and its budgets.

    Attributes:
        label: What `--model` was given.
        source: A path to an .onnx or .pt2 file, or `package:IMPORT_NAME/path/in/package.onnx`,
            or a model in MLflow, see `model_uri`.
        shapes: Fixed dimensions by input name; empty keeps the model's own.
        dtypes: Input dtypes by input name, where they differ from the model's own.
        trials: Measurements for a task that is searched from nothing.
        time_budget_s: Seconds of tuning after which no new round begins.
        file: Where a model of MLflow was downloaded to; empty for other sources.
    """

    label: str
    name: str
    version: str
    source: str
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)
    target: str = "native"
    trials: int = 32
    time_budget_s: float | None = None
    file: str = ""


@dataclass(frozen=True, slots=True)
class NetworkVersion:
    """A network that was tuned, as the catalog keeps it.

    Attributes:
        digest: Hex SHA-256 of the source's bytes.
    """

    name: str
    version: str
    source: str
    digest: str
    shapes: Mapping[str, tuple[int, ...]]
    tasks: tuple[Task, ...]
    created_at: float = 0.0


@dataclass(frozen=True, slots=True)
class TuningRecord:
    """One schedule of one workload with what was measured. Its id is a digest of its own content.

    Attributes:
        workload_key: The workload it was measured on.
        environment_key: The environment it was measured in.
        trace: TVM's trace as JSON (instructions and decisions), postprocessing included, for replay.
        sketch: Hex SHA-256 of the simplified trace without decisions.
        decisions: Decisions of the simplified trace, in order, for diffusion.
        run_times_s: Every timed run, seconds; their median is the latency.
        trials: Trials spent on the workload when this record was kept, over all runs.
        depth: The `--trials` for which the workload's search came to its end; 0 when it was cut short.
        state: See RecordState.
        run_id: The run that measured it.
        parent_id: The record whose decisions were diffused into it, if any.
        untuned_s: Median of the untuned program measured interleaved with it, seconds.
        created_at: Unix seconds.
        cost_model_id: The snapshot of the cost model that the run which ranked it began with, if any.
        drift: Why a later measurement doubts its latency; such a record is a prior only. Set by events alone.
        invalidated: Id of the event that took it back: it is served neither as a result nor as a prior. Set by events alone.
    """

    workload_key: str
    environment_key: str
    trace: Json
    sketch: str
    decisions: tuple[Decision, ...]
    run_times_s: tuple[float, ...]
    trials: int
    depth: int
    state: RecordState
    run_id: str
    parent_id: str | None = None
    untuned_s: float | None = None
    created_at: float = 0.0
    reason: str = ""
    cost_model_id: str | None = None
    drift: str = ""
    invalidated: str = ""

    @property
    def id(self) -> str:
        """Hex SHA-256 of workload, environment, sketch, decisions and run."""
        decisions = canonical_json([[kind, value] for kind, value in self.decisions])
        return digest_of(self.workload_key, self.environment_key, self.sketch, decisions, self.run_id)

    @property
    def median_s(self) -> float:
        """Median of `run_times_s`, seconds."""
        return statistics.median(self.run_times_s)

    @property
    def spread_s(self) -> float:
        """Median absolute deviation of `run_times_s`, seconds."""
        median = self.median_s
        return statistics.median(abs(t - median) for t in self.run_times_s)

    def with_state(self, state: RecordState, **changes: Any) -> TuningRecord:
        """A copy in another state; `changes` may set any other field that is not part of the id."""
        return dataclasses.replace(self, state=state, **changes)


@dataclass(frozen=True, slots=True)
class Prior:
    """A record whose decisions can be diffused into a task.

    Attributes:
        workload: The workload the record was measured on.
        distance: `Workload.distance` to the task, 0.0 for the same workload; `anchor_distance` for ANCHOR.
        grade: STALE for the same workload, CLUSTER or ANCHOR for another.
    """

    record: TuningRecord
    workload: Workload
    distance: float
    grade: Grade


@dataclass(frozen=True, slots=True)
class Refutation:
    """A prior that misled: what was diffused from it lost to what was not diffused at all.

    One of the same record, workload and environment takes the place of an older one. `lookup` leaves the record out for
    the misled workload, and for those of its cluster that are at least as far from it.

    Attributes:
        record_id: The record that was the prior.
        workload_key: The workload that it misled.
        cluster: The cluster of that workload.
        distance: `Prior.distance` of the record to that workload, octaves; may be infinite.
        environment_key: The environment in which it misled.
        run_id: The run that noticed it.
        ratio: Best diffused latency over the best of the control group, above 1; infinite when nothing diffused ran.
        created_at: Unix seconds.
    """

    record_id: str
    workload_key: str
    cluster: str
    distance: float
    environment_key: str
    run_id: str
    ratio: float
    created_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Match:
    """The answer of a lookup for one workload.

    Attributes:
        record: The schedule to reuse, only for EXACT.
        priors: What to diffuse from, nearest and fastest first; empty for EXACT and COLD.
        reason: Why the grade is not better, one line; for EXACT why it is.
    """

    workload: Workload
    grade: Grade
    record: TuningRecord | None
    priors: tuple[Prior, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class CostModelSnapshot:
    """A trained latency predictor in bytes that are safe to load: no pickle.

    Attributes:
        target: Canonical target JSON it was trained for.
        booster: XGBoost's UBJ format.
        samples: npz without pickle: `features` float32 (n, n_features), `latencies_s` float64 (n,), and the names
            `workloads` and `clusters`, each U64 (n,).
        metadata: Plain JSON: extractor, n_features, xgboost version, n_samples, rank_accuracy, workloads.
    """

    target: str
    booster: bytes
    samples: bytes
    metadata: Mapping[str, Json]
    created_at: float = 0.0

    @property
    def id(self) -> str:
        """Hex SHA-256 of target, bytes and metadata; that of a row without its bytes is another."""
        booster, samples = (hashlib.sha256(data).hexdigest() for data in (self.booster, self.samples))
        return digest_of(self.target, booster, samples, canonical_json(dict(self.metadata)))


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One finished or cut tuning run, kept to estimate what the next will cost.

    Attributes:
        trials: Measurements in the run.
        tuning_s: Seconds of tuning, start of the worker pool included.
        report: The whole report as plain JSON.
    """

    id: str
    network: str
    version: str
    environment_key: str
    seed: int
    trials: int
    tuning_s: float
    finished: bool
    created_at: float
    report: Json


@dataclass(frozen=True, slots=True)
class BlobInfo:
    """What a store knows of a blob without reading it.

    Attributes:
        size: Bytes as stored.
        modified_at: Unix seconds when it was last put, by the store's own clock.
    """

    digest: str
    size: int
    modified_at: float


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on something alone for a while.

    Attributes:
        name: What it is for: for example an environment and a cluster.
        holder: Who has it: a run's id.
        token: Grows each time that it goes to another holder; a write with an older one is refused.
        expires_at: Unix seconds by the catalog's own clock, after which anybody may take it.
    """

    name: str
    holder: str
    token: int
    expires_at: float


@dataclass(frozen=True, slots=True)
class Event:
    """Something that was said of records: they were taken back or restored, they drifted or are steady again.

    Attributes:
        id: 32 hex digits.
        reason: Why, for people.
        selection: How the records were chosen, as plain JSON: see `Selection.as_json`.
        records: Ids of the records, sorted.
        created_at: Unix seconds.
    """

    id: str
    kind: EventKind
    reason: str
    selection: Mapping[str, Json]
    records: tuple[str, ...]
    created_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Selection:
    """Records to be chosen: those that meet all of the criteria that are given.

    Attributes:
        record: How the record's id begins; likewise `workload`, `cluster` and `environment`, hex digits.
        network: Name and version of a network whose workloads they are records of; None for the version means any.
        older_than_s: Seconds since they were kept; older ones are chosen.

    Raises:
        ConfigError: No criterion is given, or one is empty or negative.
    """

    record: str | None = None
    workload: str | None = None
    cluster: str | None = None
    environment: str | None = None
    network: tuple[str, str | None] | None = None
    older_than_s: float | None = None

    def __post_init__(self) -> None:
        if not self.as_json():
            raise ConfigError(
                "no records are selected", hint="say which: by record, workload, cluster, environment, network or age"
            )
        for name in ("record", "workload", "cluster", "environment"):
            if getattr(self, name) == "":
                raise ConfigError(f"an empty {name} selects everything", hint="give the first digits of its id")
        if self.older_than_s is not None and not self.older_than_s >= 0:
            raise ConfigError(f"an age of {self.older_than_s} s selects nothing", hint="give a positive time, such as 30d")

    def as_json(self) -> dict[str, Json]:
        """The criteria that are given, by name, as plain JSON."""
        given = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if getattr(self, f.name) is not None}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}
