"""What a run found while its registry did not answer: kept on disk, and given to the registry when it answers again.

A spool is the folder `RUN_ID` below `home/spool`. Each of its files appears whole, is named by the SHA-256 of its own bytes
and holds all that its records refer to: one that is damaged takes nothing with it, and each may be given more than once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import logging
import math
import re
import shutil
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from filelock import FileLock
from pydantic import ConfigDict, TypeAdapter, ValidationError

from .blobs.digests import MAX_BLOB_BYTES, blob_digest, verified
from .blobs.local import LocalBlobs
from .errors import BcdError, CorruptBlob, NotFound, RegistryError, SchemaMismatch, StoreDenied, StoreUnavailable
from .folders import make_folder, store_errors, write_whole
from .model import (
    CostModelSnapshot,
    Environment,
    Json,
    Lease,
    NetworkVersion,
    Refutation,
    RunSummary,
    TuningRecord,
    Workload,
)
from .registry import Registry
from .staleness import environment_key

if TYPE_CHECKING:
    from .settings import Settings

SPOOL_FOLDER = "spool"
"""Where spools lie below the home."""

PUBLISH_COMMAND = "bcd-registry publish --spool"

RETRY_AFTER_S = 30.0
"""After a failure the registry is left alone for so long: each attempt may cost a whole time-out."""

_LOG = logging.getLogger(__name__)
_FILE = re.compile(r"\d{6}-(?P<digest>[0-9a-f]{64})\.v1\.json")
_BLOBS = "blobs"
_LOCK = ".lock"
_UNFINISHED = ".tmp"
_MAY_BE_INFINITE = ("distance", "ratio")
_ANY_LENGTH = "seed"
_Dated = TypeVar("_Dated", NetworkVersion, Refutation, CostModelSnapshot, RunSummary)


@dataclass(frozen=True, slots=True)
class Results:
    """What a run gives to a registry; any part may be empty.

    Attributes:
        environment: What records and refutations were measured in.
        workloads: What they refer to, beside the tasks of `network`.
        kept: Records to keep as priors.
        published: Checked records to publish.
        quarantined: Why records that are stored, or in `kept`, are not to be served, by id.
    """

    environment: Environment | None = None
    workloads: tuple[Workload, ...] = ()
    network: NetworkVersion | None = None
    kept: tuple[TuningRecord, ...] = ()
    published: tuple[TuningRecord, ...] = ()
    quarantined: Mapping[str, str] = field(default_factory=dict)
    refutations: tuple[Refutation, ...] = ()
    cost_model: CostModelSnapshot | None = None
    run: RunSummary | None = None


def give(registry: Registry, results: Results, fences: Sequence[Lease] = ()) -> None:
    """Store the results, what is referred to first. May be repeated: all that is stored already stays as it is.

    Raises:
        RegistryError: What the registry raises; what came before is stored.
    """
    if results.environment is not None:
        registry.put_environment(results.environment)
    if results.workloads:
        registry.put_workloads(results.workloads)
    if results.network is not None:
        registry.register_network(results.network)
    if results.kept:
        registry.keep(results.kept, fences=fences)
    for record_id, reason in results.quarantined.items():
        registry.quarantine([record_id], reason)
    if results.published:
        registry.publish(results.published, fences=fences)
    if results.refutations:
        registry.refute(results.refutations)
    if results.cost_model is not None:
        registry.add_cost_model(results.cost_model)
    if results.run is not None:
        registry.put_run(results.run)


@dataclass(frozen=True, slots=True)
class _Entry:
    """One file: the results, and for which registry they are. A cost model's bytes are digests of blobs beside it."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(ser_json_inf_nan="constants")

    origin: str
    results: Results


@functools.cache
def _entries() -> TypeAdapter[_Entry]:
    return TypeAdapter(_Entry)


class Spool:
    """The spool of one run, made at the first write. Used by one thread; others may publish it meanwhile."""

    def __init__(self, root: Path, run_id: str, *, origin: str = "", clock: Callable[[], float] = time.time) -> None:
        """Nothing is written yet.

        Args:
            root: The folder of all spools, `home/spool`.
            origin: For which registry the results are, see `origin_of`.
            clock: Unix seconds, for values that come without a time.
        """
        self.folder = root / run_id
        self._root, self._origin, self._clock = root, origin, clock
        self._numbers = itertools.count(1)

    def write(self, results: Results) -> Path:
        """Keep the results in a file of their own, which is on the disk when this returns.

        Raises:
            StoreUnavailable: The disk is full or fails.
            StoreDenied: The folder is not this user's to write.
        """
        with _locked(self._root):
            make_folder(self.folder)
            entry = _Entry(self._origin, _dated(self._without_bytes(results), self._clock()))
            data = _entries().dump_json(entry)
            path = self.folder / f"{next(self._numbers):06d}-{blob_digest(data)}.v1.json"
            write_whole(path, data, temporary=self.folder, prefix=".", suffix=_UNFINISHED)
        return path

    def _without_bytes(self, results: Results) -> Results:
        model = results.cost_model
        if model is None:
            return results
        blobs = LocalBlobs(self.folder / _BLOBS)
        booster, samples = blobs.put(model.booster).encode(), blobs.put(model.samples).encode()
        return dataclasses.replace(results, cost_model=dataclasses.replace(model, booster=booster, samples=samples))


class Outbox:
    """The way of a run's results: to the registry, and while that does not answer, to a spool. Used by one thread."""

    def __init__(
        self,
        registry: Registry | None,
        spool: Spool | None,
        *,
        reason: str = "",
        clock: Callable[[], float] = time.monotonic,
        retry_after_s: float = RETRY_AFTER_S,
    ) -> None:
        """Nothing is given yet.

        Args:
            registry: None when it could not be opened: then all is spooled.
            spool: None to have no other way than the registry.
            reason: Why there is no registry.
            clock: Seconds, for `retry_after_s`.
            retry_after_s: How long the registry is left alone after it did not answer.
        """
        self._registry, self._spool = registry, spool
        self._clock, self._retry_after_s = clock, retry_after_s
        self._environment: Environment | None = None
        self._workloads: dict[str, Workload] = {}
        self._registered = False
        self._ask_again_at = float("-inf")
        self._reason = reason
        self._n_spooled = 0

    def register(self, network: NetworkVersion, environment: Environment) -> str:
        """Store what the run's records will refer to, and return the environment's key.

        Raises:
            RegistryError: See `give`.
        """
        self._environment = environment
        self._workloads = {task.workload.key: task.workload for task in network.tasks}
        self._registered = self.give(Results(environment=environment, network=network))
        return environment_key(environment)

    def give(self, results: Results, fences: Sequence[Lease] = ()) -> bool:
        """Store the results, or keep them on disk; returns whether the registry has them.

        Args:
            fences: Leases that the writer believes to hold. What is spooled is published without them: by then others may
                have the leases, and the measurements are as good.

        Raises:
            StoreUnavailable: The registry does not answer, and there is no spool or the disk takes nothing either.
            RegistryError: The registry refuses them: they are not spooled.
        """
        if results == Results() or self._is_taken(results, fences):
            return True
        if self._spool is None:
            raise StoreUnavailable(f"there is no registry to keep results in: {self._reason}")
        self._spool.write(self._complete(results))
        self._n_spooled += 1
        return False

    def settle(self) -> str:
        """At the end: ask the registry once more to take what was spooled.

        Returns:
            One line that says what became of it; empty when the registry took everything at once.
        """
        if self._spool is None or not self._n_spooled:
            return ""
        folder = self._spool.folder
        if self._registry is None:
            return _waiting(folder, self._reason)
        try:
            published = publish_spool(self._registry, folder.parent, run_id=folder.name)
        except RegistryError as error:
            return _waiting(folder, error.message)
        if published.set_aside:
            return f"{len(published.set_aside)} results were not published: {published.set_aside[0]}"
        return f"the registry did not answer for a while ({self._reason}); what it missed was spooled and is published now"

    def _is_taken(self, results: Results, fences: Sequence[Lease]) -> bool:
        if self._registry is None or self._clock() < self._ask_again_at:
            return False
        try:
            give(self._registry, results if self._registered else self._complete(results), fences)
        except StoreUnavailable as error:
            if self._spool is None:
                raise
            self._reason, self._ask_again_at = error.message, self._clock() + self._retry_after_s
            return False
        return True

    def _complete(self, results: Results) -> Results:
        """With the environment and the workloads that its records and refutations refer to."""
        keys = {record.workload_key for record in (*results.kept, *results.published)}
        keys |= {refutation.workload_key for refutation in results.refutations}
        known = {workload.key for workload in results.workloads}
        added = [workload for key, workload in self._workloads.items() if key in keys - known]
        environment = results.environment or (self._environment if keys else None)
        return dataclasses.replace(results, environment=environment, workloads=(*results.workloads, *added))


def _waiting(folder: Path, reason: str) -> str:
    return f"results wait in {folder}: {reason}; the next command publishes them, or `{PUBLISH_COMMAND}`"


@dataclass(frozen=True, slots=True)
class Published:
    """What became of the spools.

    Attributes:
        runs: Ids of the runs of which something was published.
        n_files: Files that were given to the registry and removed.
        n_records: Records in them.
        set_aside: Files that were renamed, one line each with the reason.
        foreign: Spools with results for another registry: they stay.
    """

    runs: tuple[str, ...] = ()
    n_files: int = 0
    n_records: int = 0
    set_aside: tuple[str, ...] = ()
    foreign: tuple[Path, ...] = ()

    def as_json(self) -> dict[str, Json]:
        """Plain JSON."""
        return {
            "runs": list(self.runs),
            "files": self.n_files,
            "records": self.n_records,
            "set_aside": list(self.set_aside),
            "foreign": [str(folder) for folder in self.foreign],
        }

    def __add__(self, other: Published) -> Published:
        return Published(
            runs=tuple(dict.fromkeys((*self.runs, *other.runs))),
            n_files=self.n_files + other.n_files,
            n_records=self.n_records + other.n_records,
            set_aside=(*self.set_aside, *other.set_aside),
            foreign=tuple(dict.fromkeys((*self.foreign, *other.foreign))),
        )


def publish_spool(registry: Registry, root: Path, *, origin: str | None = None, run_id: str | None = None) -> Published:
    """Give what is spooled to the registry. A file is removed once the registry has it, and may be given more than once.

    A file that is damaged, or that the registry refuses, is renamed to `.damaged` or `.refused` and logged; the others go on.

    Args:
        root: The folder of all spools, `home/spool`; it need not be there.
        origin: Only results for this registry, see `origin_of`; None takes all.
        run_id: Only the spool of this run.

    Raises:
        StoreUnavailable: The registry does not answer: what it has not taken stays.
        StoreDenied: It refuses this user, or the folder is not this user's.
    """
    published = Published()
    for folder in _spools(root, run_id):
        for path in _files(folder):
            published += _publish_file(registry, path, origin)
        _remove_if_done(root, folder)
    return published


def _publish_file(registry: Registry, path: Path, origin: str | None) -> Published:
    try:
        entry = _read(path)
        if origin not in (None, entry.origin):
            return Published(foreign=(path.parent,))
        give(registry, _without_outdated(registry, entry.results))
    except FileNotFoundError:  # somebody else published it
        return Published()
    except (StoreUnavailable, StoreDenied, SchemaMismatch):
        raise
    except BcdError as error:
        return Published(set_aside=_set_aside(path, error))
    with store_errors(path.parent):
        path.unlink(missing_ok=True)
    return Published((path.parent.name,), 1, len(entry.results.kept) + len(entry.results.published))


def open_spool(settings: Settings, run_id: str) -> Spool | None:
    """Where a run's results wait for the registry of the settings; None when that is switched off or only read."""
    if settings.read_only or not settings.registry_enabled:
        return None
    return Spool(settings.home / SPOOL_FOLDER, run_id, origin=origin_of(settings))


def publish_at_start(registry: Registry, settings: Settings) -> str:
    """What a command does before its own work: publish what is spooled for the registry of the settings.

    Returns:
        One line that says what was done; empty when there was nothing to do. Trouble is logged, never raised.
    """
    root = settings.home / SPOOL_FOLDER
    if settings.read_only or not settings.registry_enabled:
        return ""
    try:
        published = publish_spool(registry, root, origin=origin_of(settings))
    except RegistryError as error:
        _LOG.warning("the spool in %s is not published: %s", root, error.message)
        return ""
    if not published.n_files:
        return ""
    whose = ", ".join(run[:8] for run in published.runs)
    records = "1 record" if published.n_records == 1 else f"{published.n_records} records"
    return f"published what run {whose} had spooled: {records}"


def origin_of(settings: Settings) -> str:
    """What tells one registry from another: its addresses, without user, password and options; empty for the home's own."""
    urls = (settings.database_url, settings.s3_endpoint_url, settings.blobs_url)
    return " ".join(_bare(url) for url in urls if url)


def _bare(url: str) -> str:
    parts = urllib.parse.urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _spools(root: Path, run_id: str | None) -> list[Path]:
    with store_errors(root):
        folders = sorted(root.iterdir()) if root.is_dir() else []
        return [folder for folder in folders if folder.is_dir() and run_id in (None, folder.name)]


def _files(folder: Path) -> list[Path]:
    """Its whole files in the order in which they were written."""
    with store_errors(folder), contextlib.suppress(FileNotFoundError):
        return sorted(path for path in folder.iterdir() if _FILE.fullmatch(path.name))
    return []


def _read(path: Path) -> _Entry:
    """The entry in the file, with the bytes of its cost model.

    Raises:
        CorruptBlob: It, or a blob that belongs to it, is damaged, gone or of another form, or holds what no catalog takes.
        FileNotFoundError: The file itself is gone.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BLOB_BYTES)
        entry = _entries().validate_json(verified(data, _FILE.sub(r"\g<digest>", path.name)))
        _require_storable(entry.results)
        return dataclasses.replace(entry, results=_with_bytes(entry.results, LocalBlobs(path.parent / _BLOBS)))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise CorruptBlob(f"it cannot be read: {error.strerror or error}") from error
    except ValidationError as error:
        raise CorruptBlob(f"it holds no results: {error.errors()[0]['msg']}") from error
    except NotFound as error:
        raise CorruptBlob(error.message) from error


def _require_storable(value: Any, name: str = "") -> None:
    """Refuse a number or a text that a database or JSON has no place for.

    Raises:
        CorruptBlob: There is one.
    """
    if dataclasses.is_dataclass(value):
        for part in dataclasses.fields(value):
            _require_storable(getattr(value, part.name), part.name)
    elif isinstance(value, Mapping):
        for key, part in value.items():
            _require_storable(key, name)
            _require_storable(part, name)
    elif isinstance(value, list | tuple):
        for part in value:
            _require_storable(part, name)
    elif isinstance(value, float):
        fits = math.isfinite(value) or (name in _MAY_BE_INFINITE and not math.isnan(value))
        _require_fitting(fits, name)
    elif isinstance(value, int):
        _require_fitting(abs(value) < 2**63 or name == _ANY_LENGTH, name)
    elif isinstance(value, str):
        _require_fitting("\0" not in value, name)


def _require_fitting(fits: bool, name: str) -> None:
    if not fits:
        raise CorruptBlob(f"it holds a value of `{name}` that cannot be stored")


def _with_bytes(results: Results, blobs: LocalBlobs) -> Results:
    model = results.cost_model
    if model is None:
        return results
    booster, samples = blobs.get(model.booster.decode()), blobs.get(model.samples.decode())
    return dataclasses.replace(results, cost_model=dataclasses.replace(model, booster=booster, samples=samples))


def _without_outdated(registry: Registry, results: Results) -> Results:
    """Without the version of a network that was registered anew since."""
    network = results.network
    if network is None:
        return results
    try:
        outdated = registry.get_network(network.name, network.version).created_at > network.created_at
    except NotFound:
        return results
    return dataclasses.replace(results, network=None) if outdated else results


def _set_aside(path: Path, error: BcdError) -> tuple[str, ...]:
    """Rename a file that cannot be published; the line that was logged, or none when somebody else published it."""
    aside = path.with_name(f"{path.name}.{'damaged' if isinstance(error, CorruptBlob) else 'refused'}")
    with store_errors(path.parent):
        try:
            path.replace(aside)
        except FileNotFoundError:
            return ()
    line = f"{aside}: set aside: {error.message}"
    _LOG.warning("%s", line)
    return (line,)


def _remove_if_done(root: Path, folder: Path) -> None:
    """Remove a spool that has no file left; the lock says that nobody writes to it at this moment."""
    with _locked(root):
        if folder.is_dir() and all(path.name == _BLOBS or path.suffix == _UNFINISHED for path in folder.iterdir()):
            shutil.rmtree(folder)


@contextlib.contextmanager
def _locked(root: Path) -> Iterator[None]:
    """Keeps a spool from being removed while its run writes to it."""
    with store_errors(root):
        make_folder(root)
        with FileLock(root / _LOCK):
            yield


def _dated(results: Results, now: float) -> Results:
    """With the time of spooling where the registry would have put its own."""

    def at(value: _Dated) -> _Dated:
        return value if value.created_at else dataclasses.replace(value, created_at=now)

    return dataclasses.replace(
        results,
        network=None if results.network is None else at(results.network),
        refutations=tuple(at(refutation) for refutation in results.refutations),
        cost_model=None if results.cost_model is None else at(results.cost_model),
        run=None if results.run is None else at(results.run),
    )
