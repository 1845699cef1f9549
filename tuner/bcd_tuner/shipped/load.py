"""Runs the compiled network in this folder. Needs tvm and numpy, and nothing of what compiled it.

python load.py                    # a try on random inputs

from load import load
network = load()                  # verifies the files and this CPU before anything runs
outputs = network(image)          # numpy arrays, in the order of `inputs` and `outputs` in manifest.json
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

FORMAT = 1
"""The format of manifest.json that this reads."""

MANIFEST = "manifest.json"
_MAX_INTEGER = 2
_STDERR = 2


class Refused(Exception):
    """The folder cannot or must not be run here; the message is one line."""


class NotCompiled(Refused):
    """It is no compiled network, or one in another format."""


class Damaged(Refused):
    """A file is missing, or is not the one that was compiled."""


class OtherMachine(Refused):
    """This machine lacks what the network was compiled for."""


class Network:
    """The compiled network. Call it from one thread at a time.

    Attributes:
        manifest: What manifest.json says.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        """Load the library; nothing is verified here."""
        import tvm

        self.manifest = manifest
        self._tensor = tvm.runtime.tensor
        self._main = open_library(folder / manifest["library"])["main"]

    def __call__(self, *inputs: Any) -> list[Any]:
        """Outputs in order, as numpy arrays.

        Raises:
            ValueError: An input has another shape or dtype than the network takes.
        """
        outputs = self.bind(*inputs)()
        return [outputs.numpy()] if hasattr(outputs, "numpy") else [output.numpy() for output in outputs]

    def bind(self, *inputs: Any) -> Callable[[], Any]:
        """A call on inputs that are already where the network reads them, for timing.

        Raises:
            ValueError: An input has another shape or dtype than the network takes.
        """
        check_inputs(self.manifest, inputs)
        main, tensors = self._main, [self._tensor(np.ascontiguousarray(array)) for array in inputs]
        return lambda: main(*tensors)


def load(folder: str | Path = Path(__file__).parent) -> Network:
    """Verify the folder and this machine, then load the network.

    Raises:
        Refused: It must not run here.
    """
    manifest = read_manifest(Path(folder))
    check_files(Path(folder), manifest)
    check_machine(manifest)
    os.environ.setdefault("TVM_NUM_THREADS", str(manifest["threads"]))
    return Network(Path(folder), manifest)


def open_library(path: Path) -> Any:
    """The virtual machine that runs what a library holds."""
    import tvm
    from tvm.runtime.vm import VirtualMachine

    with without_warnings():
        return VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu())


def read_manifest(folder: Path) -> dict[str, Any]:
    """What the folder says of itself.

    Raises:
        NotCompiled: There is no such file, or it is not one that this reads.
    """
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
    except OSError as error:
        raise NotCompiled(f"{folder} is not a compiled network: no {MANIFEST} can be read") from error
    except ValueError as error:
        raise NotCompiled(f"{path} is not JSON") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        written = manifest.get("format") if isinstance(manifest, dict) else None
        raise NotCompiled(f"{path} has the format {written!r}, this reads {FORMAT}")
    wanted = {"files": dict, "inputs": list, "isa": list, "library": str, "machine": str, "threads": int}
    wrong = [name for name, kind in wanted.items() if not isinstance(manifest.get(name), kind)]
    if wrong or manifest["library"] not in manifest["files"]:
        raise NotCompiled(f"{path} has no valid {', '.join(wrong) or 'library'}")
    return manifest


def check_files(folder: Path, manifest: dict[str, Any]) -> None:
    """Every file is the one that was compiled.

    Raises:
        Damaged: One is missing or has other bytes.
    """
    for name, digest in manifest["files"].items():
        if Path(name).name != name:
            raise Damaged(f"{MANIFEST} names a file outside of its folder: {name}")
        try:
            found = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        except OSError as error:
            raise Damaged(f"{folder / name} is missing: {error.strerror}") from error
        if found != digest:
            raise Damaged(f"{folder / name} is not the file that was compiled: its digest is {found[:12]}, not {digest[:12]}")


def check_machine(manifest: dict[str, Any]) -> None:
    """This machine has the instructions that the network was compiled for, as far as the compiler can tell.

    Raises:
        OtherMachine: It lacks some.
    """
    if platform.machine() != manifest["machine"]:
        raise OtherMachine(f"the network was compiled for {manifest['machine']}, this is {platform.machine()}")
    here = cpu_features()
    lacking = [name for name in manifest["isa"] if name not in here]
    if here and lacking:
        raise OtherMachine(f"this CPU lacks {', '.join(lacking)}, which the network was compiled for")


def cpu_features() -> frozenset[str]:
    """This CPU's instruction sets by LLVM's names; empty where they cannot be told."""
    import tvm

    detect = tvm.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures", allow_missing=True)
    if detect is None or platform.machine() not in {"x86_64", "AMD64"}:
        return frozenset()
    return frozenset(str(name) for name, present in detect().items() if present)


def check_inputs(manifest: dict[str, Any], inputs: tuple[Any, ...]) -> None:
    """The arrays are what the network takes: its compiled code does not look.

    Raises:
        ValueError: They are not.
    """
    wanted = [(i["name"], str(i["dtype"]), tuple(i["shape"])) for i in manifest["inputs"]]
    if len(inputs) != len(wanted):
        raise ValueError(f"{len(inputs)} inputs given, the network takes {', '.join(name for name, _, _ in wanted)}")
    for (name, dtype, shape), array in zip(wanted, inputs, strict=True):
        given = np.asarray(array)
        if (str(given.dtype), given.shape) != (dtype, shape):
            raise ValueError(f"input {name} is {given.dtype} {given.shape}, the network takes {dtype} {shape}")


def made_up_inputs(manifest: dict[str, Any], seed: int = 0) -> list[Any]:
    """Random inputs: floats are normal, integers 0 or 1, so that they index in bounds."""
    rng = np.random.default_rng(seed)
    arrays = []
    for wanted in manifest["inputs"]:
        dtype, shape = np.dtype(wanted["dtype"]), tuple(wanted["shape"])
        values = rng.integers(0, _MAX_INTEGER, shape) if dtype.kind in "biu" else rng.standard_normal(shape)
        arrays.append(np.asarray(values).astype(dtype))
    return arrays


@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """TVM 0.27 warns of each weight that it saves or loads, and writes to the descriptor and not to `sys.stderr`."""
    try:
        kept, nowhere = os.dup(_STDERR), os.open(os.devnull, os.O_WRONLY)
    except OSError:  # it is closed: nothing is seen anyway
        yield
        return
    os.dup2(nowhere, _STDERR)
    try:
        yield
    finally:
        os.dup2(kept, _STDERR)
        os.close(kept)
        os.close(nowhere)


def main() -> int:
    """Load the network, run it once, and say what came out."""
    try:
        network = load()
    except Refused as refusal:
        sys.stderr.write(f"error: {refusal}\n")
        return 1
    inputs = made_up_inputs(network.manifest)
    network(*inputs)
    began = time.perf_counter()
    outputs = network(*inputs)
    taken_ms = (time.perf_counter() - began) * 1e3
    for output in outputs:
        sys.stdout.write(f"{output.dtype} {output.shape}\n")
    sys.stdout.write(f"{taken_ms:.3g} ms on {os.environ['TVM_NUM_THREADS']} threads\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
