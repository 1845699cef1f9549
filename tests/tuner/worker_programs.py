"""Tiny programs for the tests of measuring: some of them misbehave."""

from __future__ import annotations

from typing import Any

import tvm

_ELEMENTWISE = """
@T.prim_func(s_tir=True)
def main(a: T.Buffer((64, 64), "{dtype}"), b: T.Buffer((64, 64), "{dtype}")):
    for i, j in T.grid(64, 64):
        with T.sblock("block"):
            v, w = T.axis.remap("SS", [i, j])
            b[v, w] = {value}
"""
_WITH_CALL = """
@T.prim_func(s_tir=True)
def main(a: T.Buffer((64, 64), "float32"), b: T.Buffer((64, 64), "float32")):
    for i in range(64):
        b[i, 0] = a[i, 0]
        T.evaluate(T.call_extern("int32", "{name}"))
"""
_MATMUL = """
@T.prim_func(s_tir=True)
def main(a: T.Buffer((64, 64), "float32"), b: T.Buffer((64, 64), "float32"), c: T.Buffer((64, 64), "float32")):
    T.func_attr({"layout_free_buffers": [1]})
    for i, j, k in T.grid(64, 64, 64):
        with T.sblock("matmul"):
            v, w, r = T.axis.remap("SSR", [i, j, k])
            with T.init():
                c[v, w] = T.float32(0)
            c[v, w] = c[v, w] + a[v, r] * b[r, w]
"""
_GATHER = """
@T.prim_func(s_tir=True)
def main(table: T.Buffer((7, 16), "float32"), row: T.Buffer((512,), "int64"), out: T.Buffer((512, 16), "float32")):
    for i, j in T.grid(512, 16):
        with T.sblock("gather"):
            v, w = T.axis.remap("SS", [i, j])
            out[v, w] = table[row[v], w]
"""


def _module(source: str) -> Any:
    function = tvm.script.from_source(source)
    return tvm.IRModule({"main": function})


def elementwise(value: str, dtype: str = "float32") -> Any:
    """A program that writes `value`, an expression over `a[v, w]`."""
    return _module(_ELEMENTWISE.format(value=value, dtype=dtype))


def calling(name: str) -> Any:
    """A program that calls a C function again and again."""
    return _module(_WITH_CALL.format(name=name))


scale = elementwise("a[v, w] * T.float32(2)")
matmul = _module(_MATMUL)
gather = _module(_GATHER)
abort = calling("abort")
wait_for_ever = calling("pause")
unknown_symbol = calling("no_such_function_anywhere")
