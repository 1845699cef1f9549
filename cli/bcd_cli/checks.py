"""The checks of `doctor`. What may crash runs in a process of its own, so that a crash is an answer."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from bcd_registry.errors import BcdError, NotFound, StoreUnavailable

if TYPE_CHECKING:
    from bcd_cli.state import State
    from bcd_registry.ports import BlobStore

Status = Literal["ok", "warn", "fail"]

_PROBE_TIMEOUT_S = 180.0
_TVM = (0, 27)
_FFI = ((0, 1, 14), (0, 1, 15))
_PIN_HINT = "pip install 'apache-tvm==0.27.0.post1' 'apache-tvm-ffi>=0.1.14.post0,<0.1.15'"
_REGISTRY, _TUNING = 4, 5
_LEAST_FREE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Check:
    """One answer.

    Attributes:
        detail: What was found.
        hint: What to do, when it is not `ok`.
        exit_code: What the command returns when this is the first that failed.
    """

    name: str
    status: Status
    detail: str
    hint: str = ""
    exit_code: int = _TUNING


@dataclass(frozen=True, slots=True)
class Answer:
    """What a probe said: its JSON, or else why there is none."""

    values: Mapping[str, Any] | None
    problem: str = ""


Probe = Callable[[str], Answer]


def run_checks(state: State, probe: Probe | None = None) -> list[Check]:
    """Every check, in the order in which they are shown.

    Args:
        probe: Asks `bcd_tuner.probe` a question; a test gives its own.
    """
    with ThreadPoolExecutor() as pool:
        versions, round_trip, kernel = pool.map(probe or ask, ("versions", "round-trip", "kernel"))
    return [
        *check_versions(versions),
        check_round_trip(round_trip),
        check_kernel(kernel),
        check_home(state),
        *check_database(state),
        *check_blobs(state),
        check_cores(),
    ]


def ask(question: str, timeout_s: float = _PROBE_TIMEOUT_S) -> Answer:
    """Ask in a child process."""
    command = [sys.executable, "-W", "ignore", "-m", "bcd_tuner.probe", question]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout_s, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return Answer(None, f"no answer after {timeout_s:.0f} s")
    if done.returncode < 0:
        return Answer(None, f"crashed with {signal.Signals(-done.returncode).name}")
    if done.returncode:
        return Answer(None, (done.stderr.strip().splitlines() or ["failed without a word"])[-1])
    return Answer(json.loads(done.stdout.strip().splitlines()[-1]))


def check_versions(answer: Answer) -> Iterator[Check]:
    """The compiler's libraries must be those that work together; onnxruntime may be missing."""
    if answer.values is None:
        yield Check("libraries", "fail", answer.problem, "install bcd-registry again with constraints.txt")
        return
    found = dict(answer.values)
    yield _version("tvm", found, lambda v: v[: len(_TVM)] == _TVM, _PIN_HINT)
    yield _version("tvm_ffi", found, lambda v: _FFI[0] <= v < _FFI[1], f"other versions crash: {_PIN_HINT}")
    for name in ("numpy", "xgboost", "onnx", "mlflow"):
        yield _version(name, found, lambda _: True, f"pip install {name}")
    if found.get("onnxruntime"):
        yield Check("onnxruntime", "ok", found["onnxruntime"])
    else:
        yield Check("onnxruntime", "warn", "not installed: outputs are not compared with it", "pip install onnxruntime")


def _version(name: str, found: Mapping[str, Any], fits: Callable[[tuple[int, ...]], bool], hint: str) -> Check:
    text = found.get(name)
    if text is None:
        return Check(name, "fail", str(found.get(f"{name}_error") or "not installed"), hint)
    numbers = tuple(int(number) for number in re.findall(r"\d+", text)[:3])
    return Check(name, "ok", text) if fits(numbers) else Check(name, "fail", f"{text} does not work", hint)


def check_round_trip(answer: Answer) -> Check:
    """Programs must survive serialisation: workers and records depend on it."""
    if answer.values is None:
        return Check("serialisation", "fail", answer.problem, _PIN_HINT)
    if not answer.values["equal"]:
        return Check("serialisation", "fail", "a program read back is not the one written", _PIN_HINT)
    return Check("serialisation", "ok", "a program survives a round trip")


def check_kernel(answer: Answer) -> Check:
    """A kernel is built, linked, loaded and run."""
    if answer.values is None:
        return Check("build and run", "fail", answer.problem, "see --debug, and that a C++ compiler is installed")
    if answer.values["compiler"] is None:
        return Check("build and run", "fail", "no C++ compiler and linker", "on Debian and Ubuntu: apt install g++")
    if not answer.values["correct"]:
        return Check("build and run", "fail", "a kernel computed something else", _PIN_HINT)
    return Check("build and run", "ok", str(answer.values["compiler_version"] or answer.values["compiler"]))


def check_home(state: State) -> Check:
    """The home folder can be made, written and has space."""
    from bcd_registry.settings import make_home

    home = state.settings.home
    try:
        make_home(state.settings)
        with tempfile.TemporaryFile(dir=home) as file:
            file.write(b"\0" * 4096)
            file.flush()
    except BcdError as error:
        return Check("home", "fail", error.message, error.hint, _REGISTRY)
    except OSError as error:
        detail = f"cannot write in {home}: {error.strerror or error}"
        return Check("home", "fail", detail, "give this user write access, or choose another with --home", _REGISTRY)
    free = shutil.disk_usage(home).free
    if free < _LEAST_FREE_BYTES:
        return Check("home", "warn", f"{home}: {free >> 20} MiB free", "free some space, or choose another with --home")
    return Check("home", "ok", f"{home}, {free >> 30} GiB free")


def check_database(state: State) -> Iterator[Check]:
    """The catalog opens, and may be read and written; none yet is fine."""
    from bcd_registry.stores import open_catalog, read_revision, try_catalog

    settings = state.settings
    if not settings.registry_enabled:
        yield Check("database", "ok", "the registry is switched off")
        return
    try:
        revision = read_revision(settings)
        if revision is None:
            yield Check("database", "ok", f"{settings.catalog_name}: not made yet; the first command makes it")
            return
        with open_catalog(settings) as catalog:
            n_networks = len(catalog.list_networks())
    except BcdError as error:
        yield _failed("database", error)
        return
    yield Check("database", "ok", f"{settings.catalog_name}: revision {revision}, networks: {n_networks}")
    yield _tried("database read", "every table", lambda: try_catalog(settings, write=False))
    if settings.read_only:
        yield Check("database write", "ok", "not tried: the registry is read-only")
    else:
        yield _tried("database write", "every table, and taken back", lambda: try_catalog(settings, write=True))


def check_blobs(state: State) -> Iterator[Check]:
    """Each of the four things that are done with blobs, on one of our own."""
    from bcd_registry.stores import open_blobs

    settings = dataclasses.replace(state.settings, local_cache_mib=0)  # the store itself is asked, not the copies
    if not settings.registry_enabled:
        return
    try:
        with open_blobs(settings) as blobs:
            yield from _try_blobs(blobs, settings.blobs_name, write=not settings.read_only)
    except BcdError as error:
        yield _failed("blobs", error)


def _try_blobs(blobs: BlobStore, place: str, *, write: bool) -> Iterator[Check]:
    """What one right lacks another may have; a store that does not answer is asked once."""
    from bcd_registry.blobs.digests import blob_digest

    data = b"bcd-registry doctor " + secrets.token_bytes(16)
    digest = blob_digest(data)
    done: set[str] = set()

    def get() -> None:
        try:
            blobs.get(digest)
        except NotFound:  # an answer as well, where nothing could be put
            if "put" in done:
                raise

    calls: dict[str, Callable[[], object]] = {"get": get, "list": lambda: next(blobs.iter_blobs(), None)}
    if write:
        calls = {"put": lambda: blobs.put(data), **calls, "delete": lambda: blobs.delete(digest)}
    for name, call in calls.items():
        try:
            call()
        except BcdError as error:
            yield _failed(f"blobs {name}", error)
            if isinstance(error, StoreUnavailable):
                return
        else:
            done.add(name)
            yield Check(f"blobs {name}", "ok", place)


def _tried(name: str, detail: str, call: Callable[[], object]) -> Check:
    try:
        call()
    except BcdError as error:
        return _failed(name, error)
    return Check(name, "ok", detail)


def _failed(name: str, error: BcdError) -> Check:
    return Check(name, "fail", error.message, error.hint, _REGISTRY)


def check_cores() -> Check:
    """Latencies measured beside other work are worth little."""
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    detail = f"{cores} to use, load {load:.1f}"
    if load > cores / 2:
        return Check("cores", "warn", detail, "other programs are running: latencies will be noisy")
    return Check("cores", "ok", detail)
