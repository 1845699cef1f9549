"""The networks of the benchmark and the versions that follow them, with their input sizes and their budgets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bcd_registry.model import NetworkSpec

Shapes = Mapping[str, tuple[int, ...]]

CLAIMS = ("det", "bert")
"""The networks that carry the claims: 64 trials for heavy tasks, 3 seeds."""

_OCR_V4 = "package:rapidocr_onnxruntime/models/ch_PP-OCRv4_{}_infer.onnx"
_OCR_V6 = "package:rapidocr/models/PP-OCRv6_{}_small.onnx"
_MAGIKA = "package:magika/models/standard_v3_3/model.onnx"


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a network.

    Attributes:
        source: Where an ONNX model lies; empty for a network that torch exports.
        torch: Its name in `torch_networks.MODELS`; empty for an ONNX model.
    """

    version: str
    source: str = ""
    shapes: Shapes = field(default_factory=dict)
    torch: str = ""


@dataclass(frozen=True, slots=True)
class Pair:
    """A network and its next version, which is the one that is compared.

    Attributes:
        first: None for a network without an earlier version: it is tuned from nothing only.
        trials: For the tasks that make up 90% of the expected untuned time.
        light_share: Share of it for each of the others.
        stock: Whether mode (a) runs, which is slow.
        small: Make the stock search small, for tests.
    """

    name: str
    title: str
    first: Version | None
    second: Version
    trials: int = 16
    light_share: float = 1.0
    seeds: tuple[int, ...] = (0,)
    stock: bool = False
    small: bool = False

    def modes(self, seed: int) -> tuple[str, ...]:
        """The modes of one comparison, in an order that turns with the seed: what slows the machine slows each of them once."""
        modes = ["b", "c", "d", "e"] if self.first else ["b", "c"]
        turned = modes if seed % 2 == 0 else modes[::-1]
        return (*turned, "a") if self.stock and seed == self.seeds[0] else tuple(turned)


def _ocr(kind: str, shape: tuple[int, ...]) -> tuple[Version, Version]:
    return Version("v4", _OCR_V4.format(kind), {"x": shape}), Version("v6", _OCR_V6.format(kind), {"x": shape})


PAIRS: dict[str, Pair] = {
    pair.name: pair
    for pair in (
        Pair("det", "PP-OCR text detector", *_ocr("det", (1, 3, 96, 96)), trials=64, light_share=0.25, seeds=(0, 1, 2)),
        Pair(
            "bert",
            "BERT, 4 layers, 256 -> 384 wide",
            Version("256", torch="bert-256"),
            Version("384", torch="bert-384"),
            trials=64,
            light_share=0.25,
            seeds=(0, 1, 2),
            stock=True,
        ),
        Pair("rec", "PP-OCR text recogniser", *_ocr("rec", (1, 3, 48, 96))),
        Pair("resnet", "ResNet-18 -> 34", Version("18", torch="resnet-18"), Version("34", torch="resnet-34")),
        Pair(
            "mobilenet",
            "MobileNetV2 1.0 -> 1.4",
            Version("1.0", torch="mobilenet-1.0"),
            Version("1.4", torch="mobilenet-1.4"),
            stock=True,
        ),
        Pair("magika", "magika", None, Version("3.3", _MAGIKA, {"bytes": (1, 2048)})),
    )
}


def spec_of(pair: Pair, version: Version, work: Path) -> NetworkSpec:
    """The network as the product takes it; a torch network is read from the file that `torch_networks` wrote."""
    source = version.source or str(torch_file(version.torch, work, ".pt2"))
    label = f"{pair.name}-{version.version}"
    return NetworkSpec(label, pair.name, version.version, source, shapes=dict(version.shapes), trials=pair.trials)


def torch_file(name: str, work: Path, suffix: str) -> Path:
    """Where the exported form of a torch network lies."""
    return work / "networks" / f"{name}{suffix}"


def torch_names(pairs: Sequence[Pair]) -> list[str]:
    """The torch networks among the pairs."""
    versions = [v for pair in pairs for v in (pair.first, pair.second) if v is not None]
    return [v.torch for v in versions if v.torch]
