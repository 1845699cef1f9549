"""Compiled folders: verified against their manifest and against this CPU, then run on numpy arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from bcd_registry.errors import ConfigError, FrozenMismatch, MeasureError
from bcd_registry.model import Json

from .shipped import load as shipped
from .targets import use_threads

_MAKE_AGAIN = "`bcd-registry compile` makes it again"


class LoadedNetwork:
    """A compiled network on this machine's CPU. Call it from one thread at a time.

    Attributes:
        manifest: What its folder says: network, inputs, schedules, latencies where it was compiled.
        threads: What it runs on in this process.
    """

    def __init__(self, network: shipped.Network, threads: int) -> None:
        self.manifest: dict[str, Json] = network.manifest
        self.threads = threads
        self._network = network

    def __call__(self, *inputs: NDArray[Any]) -> list[NDArray[Any]]:
        """Outputs in order.

        Raises:
            ConfigError: An input has another shape or dtype than the network takes.
        """
        self._check(inputs)
        return self._network(*inputs)

    def bind(self, inputs: Sequence[NDArray[Any]]) -> Callable[[], Any]:
        """A call on inputs that are already where the network reads them, for timing.

        Raises:
            ConfigError: An input has another shape or dtype than the network takes.
        """
        self._check(inputs)
        return self._network.bind(*inputs)

    def make_inputs(self, seed: int) -> list[NDArray[Any]]:
        """Random inputs: floats are normal, integers 0 or 1."""
        return shipped.made_up_inputs(self.manifest, seed)

    def _check(self, inputs: Sequence[NDArray[Any]]) -> None:
        try:
            shipped.check_inputs(self.manifest, tuple(inputs))
        except ValueError as error:
            raise ConfigError(str(error), hint="`inputs` in its manifest.json says what it takes") from error


def load_compiled(folder: Path) -> LoadedNetwork:
    """Verify a folder that `bcd-registry compile` wrote, and load its library.

    Raises:
        ConfigError: It is no such folder, has another format, or this CPU lacks what it was compiled for.
        FrozenMismatch: A file of it is missing or was changed.
        MeasureError: TVM cannot load the library.
    """
    manifest = read_manifest(folder)
    try:
        shipped.check_files(folder, manifest)
        shipped.check_machine(manifest)
    except shipped.Damaged as error:
        raise FrozenMismatch(str(error), hint=_MAKE_AGAIN) from error
    except shipped.OtherMachine as error:
        raise ConfigError(str(error), hint="compile it here, or for an older --target such as x86-64-v3") from error
    threads = use_threads(int(manifest["threads"]))
    try:
        return LoadedNetwork(shipped.Network(folder, manifest), threads)
    except Exception as error:  # TVM raises whatever its C++ does
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1][:200]
        made_with = manifest.get("environment", {}).get("tvm", "another TVM")
        raise MeasureError(f"{folder} does not load: {reason}", hint=f"it was compiled with TVM {made_with}") from error


def read_manifest(folder: Path) -> dict[str, Json]:
    """What the folder says of itself; nothing is verified.

    Raises:
        ConfigError: It is no compiled network, or has another format.
    """
    try:
        return shipped.read_manifest(folder)
    except shipped.NotCompiled as error:
        raise ConfigError(str(error), hint="give the folder that `bcd-registry compile -o` wrote, or compile again") from error
