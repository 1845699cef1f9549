"""Networks of transformers with random weights from a fixed seed: exported for the tuner and for onnxruntime, or run eagerly.

    .venv/bin/python -m tests.benchmarks.torch_networks --work build/bench

writes what is missing. torch and transformers come with the extra `bench`; they are imported by name, since the environment
that checks the types has not got them.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .networks import torch_file

_SEED = 20
_IMAGE = (1, 3, 64, 64)
_TOKENS = 32
_VOCABULARY = 4096
_CLASSES = 100
_HEAD_WIDTH = 64


def _bert(width: int) -> Any:
    transformers = importlib.import_module("transformers")
    config = transformers.BertConfig(
        vocab_size=_VOCABULARY,
        hidden_size=width,
        num_hidden_layers=4,
        num_attention_heads=width // _HEAD_WIDTH,
        intermediate_size=4 * width,
        max_position_embeddings=128,
    )
    return transformers.BertModel(config)


def _resnet(depths: Sequence[int]) -> Any:
    transformers = importlib.import_module("transformers")
    config = transformers.ResNetConfig(
        depths=list(depths), layer_type="basic", hidden_sizes=[64, 128, 256, 512], num_labels=_CLASSES
    )
    return transformers.ResNetForImageClassification(config)


def _mobilenet(multiplier: float) -> Any:
    transformers = importlib.import_module("transformers")
    config = transformers.MobileNetV2Config(depth_multiplier=multiplier, image_size=_IMAGE[-1], num_labels=_CLASSES)
    return transformers.MobileNetV2ForImageClassification(config)


MODELS: Mapping[str, Callable[[], Any]] = {
    "bert-256": functools.partial(_bert, 256),
    "bert-384": functools.partial(_bert, 384),
    "resnet-18": functools.partial(_resnet, (2, 2, 2, 2)),
    "resnet-34": functools.partial(_resnet, (3, 4, 6, 3)),
    "mobilenet-1.0": functools.partial(_mobilenet, 1.0),
    "mobilenet-1.4": functools.partial(_mobilenet, 1.4),
}


def make_model(name: str) -> Any:
    """The model in eval mode, returning plain tuples; the same weights every time."""
    torch: Any = importlib.import_module("torch")
    torch.manual_seed(_SEED)
    model = MODELS[name]().eval()
    model.config.return_dict = False
    return model


def example_inputs(name: str) -> dict[str, Any]:
    """Inputs of the network's fixed shape, by name."""
    torch: Any = importlib.import_module("torch")
    if name.startswith("bert"):
        return {"input_ids": torch.zeros((1, _TOKENS), dtype=torch.int64)}
    return {"pixel_values": torch.zeros(_IMAGE)}


def export(name: str, work: Path) -> None:
    """Write the .pt2 that the tuner reads and the .onnx that onnxruntime runs, those that are not there yet."""
    torch: Any = importlib.import_module("torch")
    program, model = torch_file(name, work, ".pt2"), torch_file(name, work, ".onnx")
    program.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        exported = torch.export.export(make_model(name), (), kwargs=example_inputs(name))
        if not program.exists():
            torch.export.save(exported, program)
        if not model.exists():
            torch.onnx.export(exported, f=str(model), dynamo=True, external_data=False, verbose=False)


def eager_call(name: str, inputs: Sequence[NDArray[Any]], threads: int) -> Callable[[], Any]:
    """A run of the model as PyTorch runs it without compiling, on inputs in the order of `example_inputs`."""
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(threads)
    model = make_model(name)
    tensors = {key: torch.from_numpy(np.ascontiguousarray(x)) for key, x in zip(example_inputs(name), inputs, strict=True)}

    def call() -> Any:
        with torch.inference_mode():
            return model(**tensors)

    return call


def main() -> None:
    """Export what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(MODELS))
    parser.add_argument("--work", type=Path, required=True)
    given = parser.parse_args()
    for name in given.names:
        if not all(torch_file(name, given.work, suffix).exists() for suffix in (".pt2", ".onnx")):
            print(f"exporting {name}", flush=True)
            export(name, given.work)


if __name__ == "__main__":
    main()
