"""Targets: what hardware code is generated for, as a user names it and as the registry compares it."""

from __future__ import annotations

import difflib
import json
import os
import platform
import re
from collections.abc import Mapping
from typing import Any

import tvm
import tvm_ffi
from tvm.target import Target, codegen

from bcd_registry.errors import ConfigError
from bcd_registry.model import Json

NATIVE = "native"
_NOISE = ("host", "keys", "tag", "libs")
_LLVM_HINT = (
    'give `native`, a CPU name that LLVM knows such as `x86-64-v3`, or JSON such as {"kind": "llvm", "mcpu": "x86-64-v3"}'
)
_COMPILED = (
    (
        r"x86|i[3-6]86|amd64",
        (
            r"64bit|cmov|cx8|cx16|crc32|3dnowa?|mmx|s?sse\S*|avx\S*|fma4?|f16c|xop|tbm|bmi2?|lzcnt|popcnt|movbe|adx|sahf|prfchw|gfni"
            r"|v?aes|pclmul|vpclmulqdq|sha(512)?|sm[34]|amx-\S+|egpr|ndd|nf|ccmp|ppx|push2pop2|cmpccxadd|movrs"
        ),
    ),
    (
        r"aarch64|arm64",
        (
            r"neon|fp-armv8|fullfp16|fp16fml|bf16|i8mm|dotprod|crc|rdm|complxnum|jsconv|fptoint|aes|sha[23]|sm4|lse(2|128)?|rcpc\S*"
            r"|sve\S*|sme\S*|cssc|mops|hbc|flagm|altnzcv|faminmax|lut|fp8\S*|v[89](\.\d+)?a"
        ),
    ),
)
"""By architecture, LLVM's names of the instructions that it chooses by itself.

Its other names are families of processors, preferences for tuning, which each release of LLVM has others of, and instructions
that only systems use, many of which virtual machines hide.
"""

_PREFERENCES = r"(fast|slow|tuning|prefer|use|avoid|disable|fuse|optimized|no)-\S+|\S+-(fusion|align|expensive|suppress)"
"""What is left out where no list says what is used."""


def resolve_target(text: str, cores: int | None = None) -> Target:
    """The target that a user's words name.

    Args:
        text: `native`, the name of a CPU or of a baseline such as `x86-64-v3`, a JSON object as TVM takes it,
            or the older form `llvm -mcpu=... -num-cores=...`.
        cores: How many cores a program may use; by default what the target says, else what this process may use.

    Raises:
        ConfigError: It names no target, or this CPU lacks instructions that it would use.
    """
    config = _parse(text.strip())
    target = _make(
        config if "num-cores" in config and cores is None else {**config, "num-cores": cores or usable_cores()}, text
    )
    if int(target.attrs.get("num-cores", 1)) < 1:
        raise ConfigError(f"`{text}` is not a target: num-cores must be at least 1", hint=_LLVM_HINT)
    _check_runs_here(target)
    return target


def canonical_target(target: Target) -> dict[str, Json]:
    """Plain JSON of a target, sorted by name, without what does not change the generated code."""
    exported = {k: _plain(v) for k, v in target.export().items() if k not in _NOISE}
    return {k: v for k, v in sorted(exported.items()) if v not in (None, "", [], {})}


def target_json(target: Target) -> str:
    """The text that names a target to another process."""
    return json.dumps(canonical_target(target), sort_keys=True)


def isa_features(target: Target) -> tuple[str, ...]:
    """Instruction sets that the compiler uses for the target, sorted; tuning preferences are not among them."""
    if target.kind.name != "llvm":
        return ()
    features = map(str, codegen.llvm_get_cpu_features(target))
    machine = str(target.attrs.get("mtriple", codegen.llvm_get_system_triple()))
    used = next((names for machines, names in _COMPILED if re.match(machines, machine)), None)
    if used is None:
        return tuple(sorted(f for f in features if not re.fullmatch(_PREFERENCES, f)))
    return tuple(sorted(f for f in features if re.fullmatch(used, f)))


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def untuned_target(target: Target) -> Target:
    """The target at LLVM's level 2, for programs that nobody scheduled.

    At level 3, TVM's default, LLVM takes 12 s to emit some of them (a convolution of 384 channels on 3 x 3 with a hard swish),
    and 0.7 s at level 2. They run equally fast within a few percent.
    """
    return Target({**json.loads(target_json(target)), "opt-level": 2})


def use_threads(n: int) -> int:
    """Have TVM's kernels run on `n` threads in this process; what it answers is how many it uses.

    TVM starts its threads once, at the first call, and left to itself takes half of the processors for hyper-threads.
    So this works only in a process where no kernel ran before.
    """
    os.environ["TVM_NUM_THREADS"] = str(n)
    return int(tvm_ffi.get_global_func("runtime.NumThreads")())


def _parse(text: str) -> dict[str, Json]:
    if text == NATIVE:
        return _native()
    if text.startswith("{"):
        return _parse_json(text)
    if text.split()[:1] == ["llvm"]:
        return _parse_flags(text)
    if text in _known_cpus():
        return {"kind": "llvm", "mcpu": text}
    raise ConfigError(f"`{text}` is not a target{_guess(text)}", hint=_LLVM_HINT)


def _known_cpus() -> list[str]:
    """Names that LLVM knows for this machine's architecture."""
    return sorted(map(str, codegen.llvm_get_cpu_archlist(Target({"kind": "llvm"}))))


def _guess(text: str) -> str:
    near = difflib.get_close_matches(text, [NATIVE, *_known_cpus()], n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _native() -> dict[str, Json]:
    """This CPU by LLVM's name, less what the name promises and this (perhaps virtual) machine hides."""
    config: dict[str, Json] = {"kind": "llvm", "mcpu": str(codegen.llvm_get_system_cpu())}
    lacking = _lacking(Target(config))
    return {**config, "mattr": [f"-{f}" for f in lacking]} if lacking else config


def _parse_json(text: str) -> dict[str, Json]:
    try:
        config = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"the target is not JSON: {error}", hint=_LLVM_HINT) from error
    if not isinstance(config, dict) or not isinstance(config.get("kind"), str):
        raise ConfigError("the target's JSON has no `kind`", hint=_LLVM_HINT)
    return config


def _parse_flags(text: str) -> dict[str, Json]:
    """`llvm -mcpu=x -num-cores=2`, as TVM wrote targets before 0.23."""
    config: dict[str, Json] = {"kind": "llvm"}
    for flag in text.split()[1:]:
        name, equals, value = flag.lstrip("-").partition("=")
        if not flag.startswith("-") or not equals:
            raise ConfigError(f"`{flag}` in target `{text}` is not of the form -name=value", hint=_LLVM_HINT)
        config[name] = value.split(",") if name == "mattr" else int(value) if value.isdigit() else value
    return config if len(config) > 1 else {**_native(), **config}


def _make(config: Mapping[str, Json], text: str) -> Target:
    try:
        target = Target(dict(config))
    except (ValueError, TypeError, RuntimeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].partition(". Target creation")[0]
        raise ConfigError(f"`{text}` is not a target: {reason}", hint=_LLVM_HINT) from error
    cpu, triple = str(target.attrs.get("mcpu", "")), str(target.attrs.get("mtriple", codegen.llvm_get_system_triple()))
    if target.kind.name == "llvm" and cpu and not codegen.llvm_is_valid_cpu(cpu, triple):
        raise ConfigError(f"LLVM knows no CPU `{cpu}` for {triple}{_guess(cpu)}", hint=_LLVM_HINT)
    return target


def _check_runs_here(target: Target) -> None:
    if target.kind.name != "llvm":
        return
    cpu, lacking = target.attrs.get("mcpu", "llvm"), _lacking(target)
    if platform.machine() == "x86_64" and "64bit" not in isa_features(target):
        raise ConfigError(f"`{cpu}` is a 32-bit CPU, and this is a 64-bit machine", hint=_LLVM_HINT)
    if lacking:
        raise ConfigError(
            f"this CPU ({codegen.llvm_get_system_cpu()}) cannot run code for `{cpu}`: it lacks {', '.join(lacking)}",
            hint="measuring needs a machine that has them; choose `native` or a lower baseline such as `x86-64-v3`",
        )


def _lacking(target: Target) -> tuple[str, ...]:
    """Features of the target that this CPU has not; empty where they cannot be detected."""
    here = host_features()
    return tuple(f for f in isa_features(target) if f not in here) if here else ()


def host_features() -> frozenset[str]:
    """Features that LLVM detects on this CPU; empty off x86, where LLVM's names for them are not the compiler's."""
    detect = tvm.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures", allow_missing=True)
    if detect is None or platform.machine() not in {"x86_64", "AMD64"}:
        return frozenset()
    return frozenset(str(name) for name, present in detect().items() if present)


def _plain(value: Any) -> Json:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)) or type(value).__name__ == "Array":
        return [_plain(v) for v in value]
    return value if isinstance(value, (bool, int, float)) else str(value)
