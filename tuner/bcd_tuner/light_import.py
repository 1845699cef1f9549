"""Tensor intrinsics of one target, without the 35 s that importing all of them takes.

`TuneContext` and TVM's own builder import `tvm.s_tir.tensor_intrin`, which parses the intrinsics of every kind of
hardware (CUDA alone takes 23 s). The package has nothing of its own, so an empty package with the same `__path__`
stands in for it, and only the target's submodules are imported.
"""

from __future__ import annotations

import ast
import importlib
import importlib.machinery
import importlib.util
import logging
import platform
import sys
from pathlib import Path

PACKAGE = "tvm.s_tir.tensor_intrin"
KNOWN_VERSIONS = ("0.26.", "0.27.")
_HOST_SUBMODULES = {"x86_64": "x86", "AMD64": "x86", "aarch64": "arm_cpu", "arm64": "arm_cpu", "riscv64": "riscv_cpu"}
_DEVICE_SUBMODULES = {"cuda": "cuda", "rocm": "rocm", "metal": "metal", "hexagon": "hexagon"}

logger = logging.getLogger(__name__)


def import_intrinsics(target_kind: str) -> bool:
    """Registers the tensor intrinsics that schedules for a kind of target may use; calling it again is free.

    Args:
        target_kind: `llvm` (this machine's own architecture), `c`, `cuda`, ... as in `target.kind.name`.

    Returns:
        False when this TVM or target is not one that the short way is known for: everything was imported, slowly.
    """
    submodules = submodules_for(target_kind)
    if _is_whole():
        return False
    if submodules is None or not _stand_in():
        logger.info("importing all of %s: the short way is not known for this TVM or for target %s", PACKAGE, target_kind)
        _import_whole()
        return False
    for name in submodules:
        importlib.import_module(f"{PACKAGE}.{name}")
    return True


def submodules_for(target_kind: str) -> tuple[str, ...] | None:
    """Submodules with the intrinsics of a kind of target on this machine; None when that is not known."""
    if target_kind == "c":
        return ()
    name = _HOST_SUBMODULES.get(platform.machine()) if target_kind == "llvm" else _DEVICE_SUBMODULES.get(target_kind)
    return None if name is None else (name,)


def _is_whole() -> bool:
    loaded = sys.modules.get(PACKAGE)
    return loaded is not None and getattr(loaded, "__file__", None) is not None


def _stand_in() -> bool:
    """Puts the empty package in place; False when TVM's own package is not the known one."""
    if PACKAGE in sys.modules:
        return True
    import tvm
    import tvm.s_tir

    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None or spec.submodule_search_locations is None:
        return False
    if not tvm.__version__.startswith(KNOWN_VERSIONS) or not _only_imports(Path(spec.origin)):
        return False
    light = importlib.machinery.ModuleSpec(PACKAGE, loader=None, is_package=True)
    light.submodule_search_locations = list(spec.submodule_search_locations)
    package = importlib.util.module_from_spec(light)
    sys.modules[PACKAGE] = package
    setattr(tvm.s_tir, PACKAGE.rpartition(".")[2], package)
    return True


def _only_imports(source: Path) -> bool:
    """Whether a package's `__init__` does nothing but import, so that leaving it out loses names only."""
    return all(_is_import(node) for node in ast.parse(source.read_text(encoding="utf-8")).body)


def _is_import(node: ast.stmt) -> bool:
    if isinstance(node, ast.If):
        return all(_is_import(child) for child in (*node.body, *node.orelse))
    docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return docstring or isinstance(node, (ast.Import, ast.ImportFrom))


def _import_whole() -> None:
    sys.modules.pop(PACKAGE, None)
    importlib.import_module(PACKAGE)
