from __future__ import annotations

import subprocess
import sys

import pytest

from bcd_tuner import light_import

_TUNE_CONTEXT = """
import sys
from bcd_tuner.light_import import import_intrinsics
assert import_intrinsics("llvm") and import_intrinsics("llvm")
from tests.tuner.worker_programs import matmul
from tvm.s_tir import TensorIntrin
from tvm.s_tir.meta_schedule import TuneContext
target = {"kind": "llvm", "mcpu": "cascadelake", "num-cores": 2}
context = TuneContext(mod=matmul, target=target, space_generator="post-order-apply")
assert context.generate_design_space()
assert "tvm.s_tir.tensor_intrin.cuda" not in sys.modules
TensorIntrin.get("dot_16x4_vnni")
"""


def test_a_tune_context_needs_only_the_targets_intrinsics() -> None:
    child = subprocess.run([sys.executable, "-c", _TUNE_CONTEXT], capture_output=True, text=True, timeout=60, check=False)
    assert child.returncode == 0, child.stderr


@pytest.mark.parametrize(
    ("kind", "machine", "expected"),
    [
        ("llvm", "x86_64", ("x86",)),
        ("llvm", "aarch64", ("arm_cpu",)),
        ("llvm", "s390x", None),
        ("cuda", "x86_64", ("cuda",)),
        ("c", "x86_64", ()),
        ("webgpu", "x86_64", None),
    ],
)
def test_submodules(monkeypatch: pytest.MonkeyPatch, kind: str, machine: str, expected: tuple[str, ...] | None) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert light_import.submodules_for(kind) == expected


@pytest.mark.parametrize(("version", "imports_only"), [("0.99.0", True), ("0.27.0", False)])
def test_an_unknown_tvm_gets_the_slow_import(monkeypatch: pytest.MonkeyPatch, version: str, imports_only: bool) -> None:
    imported: list[bool] = []
    monkeypatch.delitem(sys.modules, light_import.PACKAGE, raising=False)
    monkeypatch.setattr("tvm.__version__", version)
    monkeypatch.setattr(light_import, "_only_imports", lambda source: imports_only)
    monkeypatch.setattr(light_import, "_import_whole", lambda: imported.append(True))
    assert not light_import.import_intrinsics("llvm")
    assert imported == [True]
    assert light_import.PACKAGE not in sys.modules
