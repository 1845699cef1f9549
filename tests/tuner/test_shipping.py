"""Compiled folders: what is in them, that they run by themselves, and what is refused."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm_ffi

from bcd_registry.blobs.memory import MemoryBlobs
from bcd_registry.catalog.sql import SqlCatalog
from bcd_registry.errors import ConfigError, FrozenMismatch, MeasureError
from bcd_registry.model import NetworkSpec
from bcd_registry.registry import Registry
from bcd_tuner import shipping, verification
from bcd_tuner.bench import bench_compiled, bench_published
from bcd_tuner.compile import compile_network
from bcd_tuner.networks import import_network, make_inputs, reference_outputs
from bcd_tuner.published import read_published
from bcd_tuner.session import TuneRequest, tune
from bcd_tuner.shipping import CompileReport, compile_to, load_compiled
from bcd_tuner.verification import iter_inputs, verify
from tests.tuner.published_networks import publish_by_hand, quiet, record_by_hand, write_network
from tests.tuner.small_networks import embedding_model

FILES = {"network.so", "load.py", "load.cc", "manifest.json"}
OURS = ("bcd_registry", "bcd_tuner", "bcd_cli")


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> NetworkSpec:
    source = write_network(tmp_path_factory.mktemp("network") / "tiny.onnx")
    return NetworkSpec("tiny", "tiny", "v1", str(source), trials=2)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory, spec: NetworkSpec) -> Iterator[Registry]:
    """A registry in which the network was tuned."""
    with SqlCatalog.open_file(tmp_path_factory.mktemp("registry") / "catalog.db") as catalog:
        registry = Registry(catalog, MemoryBlobs())
        report = tune(TuneRequest(spec), registry, progress=lambda event: None)
        assert report.checked, report.notes
        yield registry


@pytest.fixture
def by_hand(tmp_path: Path) -> Iterator[Registry]:
    """An empty registry."""
    with SqlCatalog.open_file(tmp_path / "catalog.db") as catalog:
        yield Registry(catalog, MemoryBlobs())


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, spec: NetworkSpec, tuned: Registry) -> CompileReport:
    return compile_to(tmp_path_factory.mktemp("compiled") / "v1", spec, tuned, quiet)


@pytest.fixture
def folder(report: CompileReport, tmp_path: Path) -> Path:
    """A copy to do harm to."""
    return Path(shutil.copytree(report.folder, tmp_path / "copy"))


def edit(folder: Path, **changes: Any) -> None:
    """Change what the manifest says."""
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def run_python(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Python code in the folder, where our packages cannot be imported."""
    blocked = f"import sys; sys.modules.update(dict.fromkeys({OURS!r})); sys.path.insert(0, {str(folder)!r})\n"
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "TVM_NUM_THREADS")}
    clean["PYTHONDONTWRITEBYTECODE"] = "1"
    command = [sys.executable, "-c", blocked + code]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=clean, timeout=120)


def run_load_py(folder: Path) -> subprocess.CompletedProcess[str]:
    return run_python("import load; sys.exit(load.main())", folder)


def test_the_folder_is_complete(report: CompileReport) -> None:
    assert {path.name for path in report.folder.iterdir()} == FILES
    assert {path.name for path in report.folder.parent.iterdir()} == {report.folder.name}
    manifest = json.loads((report.folder / "manifest.json").read_text())
    assert manifest == report.manifest
    for name, digest in manifest["files"].items():
        assert hashlib.sha256((report.folder / name).read_bytes()).hexdigest() == digest
    assert set(manifest["files"]) == FILES - {"manifest.json"}


def test_the_manifest_says_what_was_done(report: CompileReport, spec: NetworkSpec, tuned: Registry) -> None:
    manifest = report.manifest
    assert (manifest["format"], manifest["network"], manifest["version"]) == (1, "tiny", "v1")
    assert manifest["digest"] == hashlib.sha256(Path(spec.source).read_bytes()).hexdigest()
    assert manifest["inputs"] == [{"name": "x", "shape": [1, 4, 12, 12], "dtype": "float32"}]
    assert manifest["outputs"] == [{"shape": [1, 5], "dtype": "float32"}]
    assert manifest["untuned"] == []
    assert manifest["coverage"]["of_tasks"] == manifest["coverage"]["of_time"] == 1.0
    for schedule in manifest["schedules"]:
        assert tuned.get_record(schedule["record"]).workload_key == schedule["workload"]
    assert {"untuned", "tuned"} <= set(manifest["latency_ms"])
    timing = manifest["latency_ms"]["tuned"]
    assert 0 < timing["p10"] <= timing["median"] <= timing["p90"]
    assert [case["inputs"] for case in manifest["verification"]] == ["random", "zeros", "ones", "negative", "large", "small"]
    assert all(case["equal"] for case in manifest["verification"])
    assert str(Path(spec.source).parent) not in json.dumps(manifest)


def test_the_loaded_network_computes_what_the_untuned_one_does(
    report: CompileReport, spec: NetworkSpec, tuned: Registry
) -> None:
    network = load_compiled(report.folder)
    published = read_published(spec, tuned, quiet)
    inputs = make_inputs(published.network, 7)
    [found], [expected] = network(*inputs), compile_network(published.lowered, {})(inputs)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    reference = reference_outputs(published.network, inputs)
    if reference is not None:
        np.testing.assert_allclose(found, reference[0], rtol=1e-4, atol=1e-5)


def test_load_py_needs_only_tvm_and_numpy(report: CompileReport) -> None:
    use = "n = load.load(); [y] = n(*load.made_up_inputs(n.manifest, 7))"
    code = f"import json, load; {use}; print(json.dumps(y.tolist()))"
    done = run_python(code, report.folder)
    assert done.returncode == 0, done.stderr
    network = load_compiled(report.folder)
    assert np.array_equal(np.asarray(json.loads(done.stdout), dtype=np.float32), network(*network.make_inputs(7))[0])


def test_load_py_as_a_program(report: CompileReport) -> None:
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "TVM_NUM_THREADS")}
    command = [sys.executable, str(report.folder / "load.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=clean, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "float32 (1, 5)"


@pytest.mark.slow
def test_load_cc_runs_the_network(report: CompileReport, tmp_path: Path) -> None:
    import tvm

    compiler, tvm_root, ffi_root = shutil.which("g++"), Path(tvm.__path__[0]), Path(tvm_ffi.__path__[0])
    if compiler is None or not (ffi_root / "include/tvm/ffi/extra/module.h").exists():
        pytest.skip("no g++, or no headers in the package")
    program = tmp_path / "load"
    libraries = [f"-L{tvm_root}/lib", "-ltvm_runtime", f"-L{ffi_root}/lib", "-ltvm_ffi"]
    search = f"-Wl,-rpath,{tvm_root}/lib:{ffi_root}/lib"
    source = str(report.folder / "load.cc")
    command = [
        compiler,
        "-std=c++17",
        "-O0",
        source,
        "-o",
        str(program),
        f"-I{ffi_root}/include",
        "-Wl,--no-as-needed",
        *libraries,
        search,
    ]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    done = subprocess.run([program, report.folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    dtype, *shape, _, first = done.stdout.split()
    assert (dtype, shape) == ("float32", ["1", "5"])
    network = load_compiled(report.folder)
    assert float(first) == pytest.approx(float(network(np.zeros((1, 4, 12, 12), np.float32))[0][0, 0]), rel=1e-4)
    missing = subprocess.run([program, tmp_path], capture_output=True, text=True, check=False)
    assert (missing.returncode, missing.stdout) == (1, "")
    assert missing.stderr.startswith("error: ")


def test_a_feature_that_this_cpu_lacks_is_named_before_the_library_is_loaded(folder: Path) -> None:
    isa = json.loads((folder / "manifest.json").read_text())["isa"]
    edit(folder, isa=[*isa, "avx1024"])
    (folder / "network.so").unlink()
    shutil.copy("/bin/true", folder / "network.so")
    edit(folder, files={"network.so": hashlib.sha256((folder / "network.so").read_bytes()).hexdigest()})
    with pytest.raises(ConfigError, match="lacks avx1024") as caught:
        load_compiled(folder)
    assert "--target" in caught.value.hint
    done = run_load_py(folder)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: this CPU lacks avx1024, which the network was compiled for\n"


def test_another_kind_of_machine(folder: Path) -> None:
    edit(folder, machine="riscv64")
    with pytest.raises(ConfigError, match="was compiled for riscv64"):
        load_compiled(folder)


@pytest.mark.parametrize("name", ["network.so", "load.cc"])
def test_a_changed_file_is_refused(folder: Path, name: str) -> None:
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / name).write_bytes(data)
    with pytest.raises(FrozenMismatch, match=rf"{name} is not the file that was compiled"):
        load_compiled(folder)
    done = run_load_py(folder)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1


def test_a_missing_file_is_refused(folder: Path) -> None:
    (folder / "network.so").unlink()
    with pytest.raises(FrozenMismatch, match=r"network\.so is missing"):
        load_compiled(folder)


def test_a_file_outside_of_the_folder_is_not_read(folder: Path) -> None:
    edit(folder, files={"network.so": "", "../secret": ""})
    with pytest.raises(FrozenMismatch):
        load_compiled(folder)


def test_a_library_that_is_none(folder: Path) -> None:
    (folder / "network.so").write_bytes(b"not a library")
    edit(folder, files={"network.so": hashlib.sha256(b"not a library").hexdigest()})
    with pytest.raises(MeasureError, match="does not load"):
        load_compiled(folder)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "is not a compiled network"),
        ("{", "is not JSON"),
        ("[]", "format None"),
        ('{"format": 2}', "format 2"),
        ('{"format": 1}', "no valid"),
    ],
)
def test_what_is_no_compiled_network(folder: Path, content: str | None, words: str) -> None:
    path = folder / "manifest.json"
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(ConfigError, match=words):
        load_compiled(folder)


@pytest.mark.parametrize("array", [np.zeros((1, 4, 12, 12)), np.zeros((4, 12, 12), np.float32), np.zeros(0, np.int64)])
def test_inputs_of_another_kind_are_refused(report: CompileReport, array: Any) -> None:
    network = load_compiled(report.folder)
    with pytest.raises(ConfigError, match="the network takes float32"):
        network(array)
    with pytest.raises(ConfigError, match="2 inputs given"):
        network.bind([array, array])


def test_what_else_lies_there_is_not_touched(spec: NetworkSpec, tuned: Registry, tmp_path: Path, folder: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    (folder / "mine").write_text("mine")
    for output in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / "full", folder):
        with pytest.raises(ConfigError) as caught:
            compile_to(output, spec, tuned, quiet)
        assert "-o" in caught.value.hint
    assert [(tmp_path / name).read_text() for name in ("file", "full/mine", "copy/mine")] == ["mine"] * 3


def test_an_earlier_output_is_replaced(spec: NetworkSpec, tuned: Registry, folder: Path) -> None:
    edit(folder, version="old")
    (folder / "__pycache__").mkdir()
    compile_to(folder, spec, tuned, quiet)
    assert {path.name for path in folder.iterdir()} == FILES
    assert load_compiled(folder).manifest["version"] == "v1"


def test_a_network_that_computes_something_else_is_not_written(
    spec: NetworkSpec, tuned: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write_network(tmp_path / "other.onnx", channels=4)
    wrong = read_published(NetworkSpec("other", "other", "", str(other)), tuned, quiet)
    right = read_published(spec, tuned, quiet)
    both = compile_network(right.lowered, {}), compile_network(wrong.lowered, {})
    monkeypatch.setattr(shipping, "compile_both", lambda *_: both)
    before = set(tmp_path.iterdir())
    with pytest.raises(MeasureError, match="nothing was written: on random inputs"):
        compile_to(tmp_path / "out", spec, tuned, quiet)
    assert set(tmp_path.iterdir()) == before


def test_an_interrupt_leaves_nothing(spec: NetworkSpec, tuned: Registry, tmp_path: Path) -> None:
    def interrupt(phase: str, message: str) -> None:
        if phase == "verify":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compile_to(tmp_path / "out", spec, tuned, interrupt)
    assert list(tmp_path.iterdir()) == []


def test_tasks_without_a_schedule_stay_untuned_and_are_named(spec: NetworkSpec, by_hand: Registry, tmp_path: Path) -> None:
    published = publish_by_hand(spec, by_hand, skip=1)
    n = len(published.planned)
    report = compile_to(tmp_path / "out", spec, by_hand, quiet)
    assert (report.coverage.n_tasks, report.coverage.n_exact) == (n, n - 1)
    assert 0 < report.coverage.of_time < 1
    [untuned] = report.manifest["untuned"]
    assert untuned["workload"] == published.planned[-1].task.workload.key
    assert untuned["reason"]
    assert f"1 of {n} tasks" in report.notes[0]


def test_only_schedules_that_were_searched_deeply_enough_count_when_it_is_asked(spec: NetworkSpec, by_hand: Registry) -> None:
    n = publish_by_hand(spec, by_hand).coverage.n_exact
    assert read_published(spec, by_hand, quiet, trials=1).coverage.n_exact == n
    assert read_published(spec, by_hand, quiet, trials=10**6).coverage.n_exact == 0


@pytest.mark.slow
def test_a_lock_holds_against_faster_records(spec: NetworkSpec, by_hand: Registry, tmp_path: Path) -> None:
    published = publish_by_hand(spec, by_hand)
    lock = published.lock()
    key = by_hand.put_environment(published.environment)
    faster = record_by_hand(published.lowered.tasks[0], published, key, seed=1)
    by_hand.publish([faster.with_state(faster.state, run_times_s=(1e-7,))])
    assert read_published(spec, by_hand, quiet).lock() != lock
    report = compile_to(tmp_path / "out", spec, by_hand, quiet, lock=lock)
    assert {s["record"] for s in report.manifest["schedules"]} == {task.record for task in lock.tasks}
    assert report.manifest["lock"]


def test_integer_inputs_stay_valid(tmp_path: Path) -> None:
    source = embedding_model(tmp_path / "ids.onnx")
    network = import_network(NetworkSpec("ids", "ids", "", str(source), shapes={"ids": (4,)}))
    kinds = dict(iter_inputs(network, 0))
    assert set(kinds) == {"random", "zeros", "ones", "negative", "large", "small"}
    assert all(array.dtype == np.int64 and set(array.tolist()) <= {0, 1} for [array] in kinds.values())


def test_floats_are_of_every_kind(spec: NetworkSpec) -> None:
    kinds = {name: arrays[0] for name, arrays in iter_inputs(import_network(spec), 0)}
    assert all(array.dtype == np.float32 for array in kinds.values())
    assert kinds["negative"].max() <= 0
    assert np.abs(kinds["large"]).max() > 100 * np.abs(kinds["random"]).max()
    assert 0 < np.abs(kinds["small"]).max() < 1e-3
    assert not kinds["zeros"].any()


def test_a_network_is_timed_beside_the_untuned_one(spec: NetworkSpec, tuned: Registry, report: CompileReport) -> None:
    published = bench_published(spec, tuned, quiet, repeats=5)
    assert {"tuned", "untuned"} <= set(published.timings)
    assert {t.runs for t in published.timings.values()} == {5}
    assert published.threads == report.manifest["threads"]
    assert set(bench_published(spec, tuned, quiet, untuned=False, repeats=5).timings) == {"tuned"}
    alone = bench_compiled(report.folder, quiet, repeats=5)
    assert set(alone.timings) == {"tuned"}
    assert alone.notes
    beside = bench_compiled(report.folder, quiet, against=spec, registry=tuned, repeats=5)
    assert {"tuned", "untuned"} <= set(beside.timings)
    assert beside.notes == ()


def test_a_folder_is_not_timed_beside_another_network(tuned: Registry, report: CompileReport, tmp_path: Path) -> None:
    other = write_network(tmp_path / "other.onnx", channels=4)
    with pytest.raises(ConfigError, match="was not compiled from"):
        bench_compiled(report.folder, quiet, against=NetworkSpec("o", "o", "", str(other)), registry=tuned)


class Scaled:
    """Stands for a compiled network: scales its input, after a step that magnifies rounding or does not."""

    def __init__(self, factor: float, steep: float = 1.0) -> None:
        self._factor, self._steep = factor, steep

    def __call__(self, inputs: list[Any]) -> list[Any]:
        return [np.sin(self._factor * self._steep * x.astype(np.float64)).astype(np.float32) for x in inputs]


@pytest.mark.parametrize(
    ("factor", "steep", "equal", "magnified"),
    [(1 + 1e-6, 1.0, True, False), (1 + 1e-2, 1.0, False, False), (1 + 1e-6, 1e5, True, True), (1.5, 1e3, False, False)],
)
def test_rounding_that_the_network_itself_magnifies_is_no_difference(
    spec: NetworkSpec, monkeypatch: pytest.MonkeyPatch, factor: float, steep: float, equal: bool, magnified: bool
) -> None:
    monkeypatch.setattr(verification, "reference_outputs", lambda *_: None)
    untuned, tuned = Scaled(1.0, steep), Scaled(factor, steep)
    case = verify(import_network(spec), untuned, tuned, 0)[0]  # type: ignore[arg-type]
    assert (case.equal, case.magnified) == (equal, magnified)


def test_loading_is_quiet(report: CompileReport, capfd: pytest.CaptureFixture[str]) -> None:
    load_compiled(report.folder)
    assert capfd.readouterr() == ("", "")
