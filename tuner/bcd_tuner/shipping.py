"""A network compiled with what is published for it, verified, timed, and written to a folder that runs without this package."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from tvm.support import cc

from bcd_registry.errors import MeasureError
from bcd_registry.lock import Lock, trace_digest, write_lock
from bcd_registry.model import Json, NetworkSpec
from bcd_registry.registry import Registry
from bcd_registry.staleness import environment_key

from .bench import Timing, coverage_notes, timings_json
from .compile import CompiledNetwork, NetworkCheck, check_network, compile_both
from .loader import LoadedNetwork, load_compiled
from .networks import make_inputs, onnxruntime_call
from .output_folder import check_free, write_errors, written_whole
from .plan import UNTUNED_SKETCH, PlannedTask
from .published import Coverage, PublishedNetwork, Say, read_published
from .scratch import measuring_lock
from .shipped.load import FORMAT, MANIFEST, open_library, without_warnings
from .targets import isa_features
from .verification import VerifiedCase, verify

__all__ = ["CompileReport", "LoadedNetwork", "compile_to", "load_compiled"]

SCHEMA = 1
"""Version of the JSON that `compile --json` prints."""

LIBRARY = "network.so"
_COPIED = ("load.py", "load.cc")


@dataclass(frozen=True, slots=True)
class CompileReport:
    """What was compiled and written.

    Attributes:
        manifest: The content of its manifest.json.
        cases: The comparisons with the untuned network.
        timings: By program: `untuned`, `tuned`, and `onnxruntime` where it is installed.
        notes: Warnings for people, one line each.
    """

    folder: Path
    manifest: Mapping[str, Json]
    coverage: Coverage
    cases: tuple[VerifiedCase, ...]
    timings: Mapping[str, Timing]
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Json]:
        """The object that `compile --json` prints."""
        return {"schema": SCHEMA, "folder": str(self.folder), **self.manifest, "notes": list(self.notes)}


@dataclass(frozen=True, slots=True)
class _Measured:
    """What was found of the linked network.

    Attributes:
        outputs: Shape and dtype of each.
    """

    cases: tuple[VerifiedCase, ...]
    outcome: NetworkCheck
    outputs: tuple[Mapping[str, Json], ...]

    @property
    def timings(self) -> dict[str, Timing]:
        runs = {"untuned": self.outcome.untuned_s, "tuned": self.outcome.tuned_s, "onnxruntime": self.outcome.onnxruntime_s}
        return {name: Timing.of(times) for name, times in runs.items() if times}


def compile_to(
    folder: Path,
    spec: NetworkSpec,
    registry: Registry,
    say: Say,
    *,
    trials: int = 0,
    lock: Lock | None = None,
    seed: int = 0,
) -> CompileReport:
    """Compile a network with what is published for it into a folder. Nothing is searched; nothing is written when it differs.

    Args:
        folder: New, empty, or what an earlier call wrote; it is replaced as a whole.
        trials: Count a record only when a search with so many trials a task came to its end; 0 takes any published one.
        lock: Use exactly the records that it names.
        seed: Of the random inputs.

    Raises:
        ConfigError: The folder is not free or cannot be written, or the target or a shape is wrong.
        NetworkError: The network cannot be read.
        RegistryError: The registry cannot be used.
        FrozenMismatch: What the lock names cannot be used.
        MeasureError: It does not compile or link, or computes something else than the untuned network.
    """
    real = check_free(folder)
    published = read_published(spec, registry, say, trials=trials, lock=lock)
    with written_whole(real) as draft:
        with measuring_lock():
            say("compile", "compiling the network, untuned and tuned")
            untuned, tuned = compile_both(published.lowered, published.schedules)
            say("link", f"linking {LIBRARY}")
            measured = _measure(published, untuned, _link(tuned, draft / LIBRARY), say, seed)
        manifest = _write(draft, published, measured, lock)
    notes = [*coverage_notes(published), *_notes(measured)]
    return CompileReport(folder, manifest, published.coverage, measured.cases, measured.timings, tuple(notes))


def _link(compiled: CompiledNetwork, path: Path) -> CompiledNetwork:
    """The network out of a shared library, weights included: what is verified is what is shipped.

    The compiler's driver finds libm and libgcc, which some of LLVM's code calls; `ld` alone leaves that to the process.
    """
    driver, linker = cc.get_cc(), shutil.which("ld") or shutil.which("ld.lld")
    if driver is None and linker is None:
        raise MeasureError("nothing links a library here", hint="on Debian and Ubuntu: apt install g++")

    def link(output: str, objects: Sequence[str], **_: Any) -> None:
        command = [driver, "-shared", "-fPIC"] if driver else [linker, "-shared"]
        subprocess.run([*map(str, command), "-o", output, *objects], check=True, capture_output=True, text=True)

    try:
        with write_errors(path.parent), without_warnings():
            compiled.executable.export_library(str(path), fcompile=link)
    except subprocess.CalledProcessError as error:
        reason = (error.stderr.strip() or str(error)).splitlines()[-1]
        raise MeasureError(f"{path.name} does not link: {reason}", hint="`bcd-registry doctor` tries the compiler") from error
    return CompiledNetwork(compiled.executable, open_library(path))


def _measure(published: PublishedNetwork, untuned: CompiledNetwork, linked: CompiledNetwork, say: Say, seed: int) -> _Measured:
    """Compare the linked network with the untuned one, then time both.

    Raises:
        MeasureError: They differ.
    """
    say("verify", "comparing the linked network with the untuned one")
    cases = verify(published.network, untuned, linked, seed)
    for case in cases:
        if not case.equal:
            raise MeasureError(
                f"nothing was written: on {case.inputs} inputs the tuned network differs, {case.error}",
                hint="`bcd-registry tune --fresh` searches again",
            )
    say("time", "timing both end to end")
    inputs = make_inputs(published.network, seed)
    call = onnxruntime_call(published.network, inputs, published.threads)
    outcome = check_network(untuned, linked, inputs, call)
    outputs = [{"shape": list(output.shape), "dtype": str(output.dtype)} for output in linked(inputs)]
    return _Measured(tuple(cases), outcome, tuple(outputs))


def _notes(measured: _Measured) -> list[str]:
    notes = [
        f"on {case.inputs} inputs the imported network computes something else than onnxruntime: {case.import_error}"
        for case in measured.cases
        if case.import_error
    ]
    notes += [
        f"on {case.inputs} inputs the network magnifies rounding: its outputs differ by {case.max_rel_error:.2g}, "
        "relative, and by as much when the inputs are disturbed a little"
        for case in measured.cases
        if case.magnified
    ]
    if measured.outcome.slower:
        notes.append("the tuned network is slower than the untuned one")
    return notes


def _write(draft: Path, published: PublishedNetwork, measured: _Measured, lock: Lock | None) -> dict[str, Json]:
    """The snippets, and the manifest with the digest of every other file."""
    with write_errors(draft.parent):
        for name in _COPIED:
            (draft / name).write_bytes(resources.files(f"{__package__}.shipped").joinpath(name).read_bytes())
        files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(draft.iterdir())}
        text = json.dumps(_manifest(published, measured, files, lock), indent=2) + "\n"
        (draft / MANIFEST).write_text(text, encoding="utf-8")
    manifest: dict[str, Json] = json.loads(text)
    return manifest


def _manifest(published: PublishedNetwork, measured: _Measured, files: Mapping[str, str], lock: Lock | None) -> dict[str, Json]:
    environment = published.environment
    return {
        "format": FORMAT,
        "network": published.spec.name,
        "version": published.spec.version,
        "digest": published.network.digest,
        "made_with": f"bcd-registry {metadata.version('bcd-registry')}",
        "lock": None if lock is None else hashlib.sha256(write_lock(lock).encode()).hexdigest(),
        "inputs": [asdict(spec) for spec in published.network.inputs],
        "outputs": measured.outputs,
        "library": LIBRARY,
        "files": files,
        "machine": platform.machine(),
        "isa": list(isa_features(published.lowered.target)),
        "threads": published.threads,
        "target": environment.fields["target"],
        "environment": environment.as_json(),
        "environment_key": environment_key(environment),
        "coverage": published.coverage.as_json(),
        "schedules": [_schedule(p) for p in published.planned if p.match.record is not None],
        "untuned": [_untuned(p) for p in published.not_exact],
        "latency_ms": timings_json(measured.timings),
        "verification": [asdict(case) for case in measured.cases],
    }


def _schedule(planned: PlannedTask) -> dict[str, Json]:
    """A published record that was used; one that says "untuned is best" has no schedule to apply."""
    record = planned.match.record
    assert record is not None
    return {
        "workload": planned.task.workload.key,
        "op": planned.task.workload.op,
        "weight": planned.task.weight,
        "record": record.id,
        "trace": trace_digest(record.trace),
        "applied": record.sketch != UNTUNED_SKETCH,
        "median_ms": record.median_s * 1e3,
    }


def _untuned(planned: PlannedTask) -> dict[str, Json]:
    return {
        "workload": planned.task.workload.key,
        "op": planned.task.workload.op,
        "weight": planned.task.weight,
        "grade": planned.match.grade,
        "reason": planned.match.reason,
    }
