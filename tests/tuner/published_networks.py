"""Networks with published schedules that nobody measured: valid ones, drawn once, so that a test has them in a second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tvm.s_tir.meta_schedule import TuneContext

from bcd_registry.model import NetworkSpec, RecordState, TuningRecord
from bcd_registry.registry import Registry
from bcd_tuner.published import PublishedNetwork, read_published
from bcd_tuner.replay import trace_as_json
from bcd_tuner.search import TaskSearch
from bcd_tuner.tasks import TaskModule


def quiet(phase: str, message: str) -> None:
    """Say nothing."""


def write_network(path: Path, *, size: int = 12, channels: int = 8, classes: int = 5) -> Path:
    """A convolution with relu, and a classifier; larger ones take longer."""
    rng = np.random.default_rng(3)

    def weight(name: str, *shape: int) -> Any:
        return numpy_helper.from_array((0.2 * rng.standard_normal(shape)).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Flatten", ["r"], ["f"]),
        helper.make_node("Gemm", ["f", "w2", "bias"], ["y"]),
    ]
    weights = [weight("w1", channels, 4, 3, 3), weight("w2", channels * size * size, classes), weight("bias", classes)]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, size, size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, classes])],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), str(path))
    return path


def publish_by_hand(spec: NetworkSpec, registry: Registry, *, skip: int = 0) -> PublishedNetwork:
    """Publish a schedule for each task of the network but the last `skip`; the network as it is afterwards."""
    before = read_published(spec, registry, quiet)
    registry.register_network(before.version)
    key = registry.put_environment(before.environment)
    items = before.lowered.tasks[: len(before.lowered.tasks) - skip]
    registry.publish([record_by_hand(item, before, key) for item in items])
    return read_published(spec, registry, quiet)


def record_by_hand(item: TaskModule, network: PublishedNetwork, environment_key: str, *, seed: int = 0) -> TuningRecord:
    """A checked record of a schedule that was drawn and not measured."""
    context = TuneContext(
        mod=item.mod, target=network.lowered.target, space_generator="post-order-apply", rand_state=1, num_threads=1
    )
    spaces = list(context.generate_design_space())
    search = TaskSearch(item.mod, spaces, list(context.space_generator.postprocs), rng=np.random.default_rng(seed))
    candidate = search.next_round(1, lambda candidates: None)[0]
    return TuningRecord(
        workload_key=item.task.workload.key,
        environment_key=environment_key,
        trace=trace_as_json(candidate.schedule),
        sketch=candidate.sketch,
        decisions=candidate.decisions,
        run_times_s=(1e-4, 1.1e-4, 1.2e-4),
        trials=8,
        depth=8,
        state=RecordState.CHECKED,
        run_id=f"by-hand-{seed}",
        untuned_s=2e-4,
    )
