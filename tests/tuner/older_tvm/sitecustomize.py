"""Lets this repository's code run under TVM 0.26, in worker processes too: the maker needs this folder on PYTHONPATH.

TVM 0.27 gave some classes other names and places. Whatever imports `tvm` here finds them where 0.27 has them.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

_MOVED_TO_S_TIR = ("SBlock", "SBlockRealize", "MatchBufferRegion")
_NEW = ("LShift", "RShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot")


class _Finder(importlib.abc.MetaPathFinder):
    """Finds `tvm` as usual, and changes it once it is loaded."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        if name != "tvm":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                if str(getattr(module, "__version__", "")).startswith("0.26."):
                    _change()

            loader.exec_module = exec_module
        return spec


def _change() -> None:
    import tvm
    import tvm.ir
    import tvm.s_tir
    import tvm.s_tir.analysis
    from tvm import relax, tirx

    relax.Constant.value = property(lambda self: self.data)
    tirx.BufferLoad.source = property(lambda self: self.buffer)
    tirx.BufferRegion.source = property(lambda self: self.buffer)
    tvm.ir.GenericConst = relax.Constant
    tvm.ir.TensorLoad, tvm.ir.TensorRegion, tvm.ir.StringImm = tirx.BufferLoad, tirx.BufferRegion, tirx.StringImm
    for name in _NEW:  # no program of that release has one
        setattr(tirx.expr, name, type(name, (), {}))
    for name in _MOVED_TO_S_TIR:
        setattr(tvm.s_tir, name, getattr(tirx.stmt, name))


sys.meta_path.insert(0, _Finder())
