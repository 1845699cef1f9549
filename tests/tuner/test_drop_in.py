"""RegistryDatabase, DiffusionScheduler and the other parts in plain TVM scripts."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax.transform import MetaScheduleApplyDatabase
from tvm.s_tir import Schedule
from tvm.s_tir.meta_schedule import relax_integration
from tvm.s_tir.meta_schedule.database import TuningRecord as TvmRecord
from tvm.s_tir.meta_schedule.search_strategy import EvolutionarySearch

from bcd_registry.blobs.memory import MemoryBlobs
from bcd_registry.catalog.sql import SqlCatalog
from bcd_registry.errors import StoreUnavailable
from bcd_registry.model import Grade, Prior, RecordState
from bcd_registry.registry import Registry
from bcd_tuner.cost_model import DiffusionCostModel
from bcd_tuner.database import RegistryDatabase
from bcd_tuner.latency_model import LatencyModel
from bcd_tuner.light_import import import_intrinsics
from bcd_tuner.search import DiffusionSearch
from bcd_tuner.targets import resolve_target
from bcd_tuner.task_scheduler import DiffusionScheduler
from bcd_tuner.tasks import canonicalise
from bcd_tuner.workers import WarmBuilder, WarmPool, WarmRunner
from tests.tuner import small_networks
from tests.tuner import tuning_programs as programs

TARGET = resolve_target("native", cores=2)
OTHER_TARGET = resolve_target("x86-64-v2", cores=2)
ROWS, WIDTHS = 32, (64, 96, 128)


def network() -> Any:
    """Two layers of one cluster, lowered as TVM's own pipeline does it."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((ROWS, WIDTHS[0]), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y: Any = x
            for weight in weights():
                y = builder.emit(relax.op.nn.relu(builder.emit(relax.op.matmul(y, relax.const(weight)))))
            y = builder.emit_output(y)
        builder.emit_func_output(y)
    with TARGET:
        return relax.get_pipeline("zero")(builder.get())


def activation() -> Any:
    """One layer with nothing to search for."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((ROWS, 5), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(builder.emit(relax.op.nn.relu(x)))
        builder.emit_func_output(y)
    with TARGET:
        return relax.get_pipeline("zero")(builder.get())


def weights() -> list[Any]:
    rng = np.random.default_rng(5)
    return [0.1 * rng.standard_normal(pair).astype(np.float32) for pair in itertools.pairwise(WIDTHS)]


def task_modules(mod: Any) -> list[Any]:
    return [task.dispatched[0] for task in relax_integration.extract_tasks(mod, TARGET)]


def served(database: Any, mod: Any, target: Any = TARGET) -> Any:
    return database.query_tuning_record(mod, target, "main")


def scheduled(mod: Any, database: Any) -> Any:
    with TARGET, database, tvm.transform.PassContext(opt_level=3):
        return MetaScheduleApplyDatabase()(mod)


def n_scheduled(mod: Any) -> int:
    functions = [f for f in mod.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
    return sum(bool(f.attrs.get("tirx.is_scheduled", False)) for f in functions)


def computes_the_right_thing(mod: Any) -> bool:
    x = np.random.default_rng(6).standard_normal((ROWS, WIDTHS[0])).astype(np.float32)
    expected = x
    for weight in weights():
        expected = np.maximum(expected @ weight, 0)
    machine = relax.VirtualMachine(tvm.compile(mod, target=TARGET), tvm.cpu())
    return np.allclose(machine["main"](tvm.runtime.tensor(x)).numpy(), expected, rtol=1e-4, atol=1e-4)


@dataclass
class Tuned:
    """One run of a plain script with all of our parts, and what its strategy was given."""

    database: Any
    asked: list[tuple[str, Sequence[Prior]]] = field(default_factory=list)

    def priors_of(self, mod: Any) -> Sequence[Prior]:
        priors: Sequence[Prior] = self.database.priors_of(mod)
        self.asked.append((self.database.names_of(mod)[0], priors))
        return priors


@contextlib.contextmanager
def tvm_logger() -> Iterator[None]:
    """TVM cuts its logger off from the root; pytest then adds handlers without names, which TVM's next run cannot take."""
    logger = logging.getLogger("tvm.s_tir.meta_schedule")
    logger.handlers = [handler for handler in logger.handlers if handler.get_name()]
    yield
    logger.propagate = True


def tune(database: Any, pool: WarmPool, work_dir: Path, mod: Any = None, **options: Any) -> Tuned:
    tuned = Tuned(database)
    parts = {
        "strategy": DiffusionSearch(tuned.priors_of),
        "cost_model": DiffusionCostModel(LatencyModel(seed=0), database.names_of),
        "task_scheduler": DiffusionScheduler(database, trials=8),
        **options,
    }
    with tvm_logger():
        relax_integration.tune_relax(
            mod or network(),
            {},
            TARGET,
            str(work_dir),
            max_trials_global=12,
            num_trials_per_iter=4,
            builder=WarmBuilder(pool),
            runner=WarmRunner(pool),
            database=database,
            seed=1,
            **parts,
        )
    return tuned


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmPool]:
    import_intrinsics("llvm")
    with WarmPool(TARGET, min_repeat_ms=2.0, lock_path=tmp_path_factory.mktemp("lock") / "lock") as opened:
        yield opened


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    """What the first run has left; tests that write to it begin with its records."""
    catalog = SqlCatalog.open_memory()
    with Registry(catalog, MemoryBlobs(), on_close=catalog.close) as opened:
        yield opened


@pytest.fixture(scope="module")
def first(registry: Registry, pool: WarmPool, tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    database = RegistryDatabase(registry, TARGET, measurement=pool.measurement)
    return tune(database, pool, tmp_path_factory.mktemp("first"))


@pytest.fixture
def copied(registry: Registry, first: Tuned) -> Iterator[Registry]:
    """A registry of its own with what the first run measured."""
    catalog = SqlCatalog.open_memory()
    with Registry(catalog, MemoryBlobs(), on_close=catalog.close) as copy:
        copy.put_environment(first.database.environment)
        for listed in registry.list_records():
            record = registry.get_record(listed.id)
            copy.put_workloads(list(registry.get_workloads([record.workload_key]).values()))
            copy.keep([record])
        yield copy


def publish_best(registry: Registry, pool: WarmPool) -> RegistryDatabase:
    """Publish the fastest record of each workload, as a checked run would, and open a database."""
    for key in {record.workload_key for record in registry.list_records()}:
        best = min(registry.list_records(workload=key), key=lambda record: record.median_s)
        registry.publish([registry.get_record(best.id).with_state(RecordState.CHECKED, depth=8)])
    return RegistryDatabase(registry, TARGET, measurement=pool.measurement)


def test_a_plain_script_tunes_and_compiles(first: Tuned) -> None:
    assert len(first.database) == len(first.database.get_all_tuning_records()) == 12
    compiled = scheduled(network(), first.database)
    assert n_scheduled(compiled) == 2
    assert computes_the_right_thing(compiled)


def test_what_was_measured_is_kept_and_nothing_is_published(first: Tuned, registry: Registry) -> None:
    records = registry.list_records()
    assert {record.state for record in records} == {RecordState.MEASURED}
    assert {record.run_id for record in records} == {first.database.run_id}
    assert len({record.workload_key for record in records}) == 2
    assert 6 <= len(records) <= 12
    assert {record.depth for record in records} == {0}


def test_siblings_begin_from_what_their_representative_measured_in_this_run(first: Tuned) -> None:
    (leader, none), (sibling, priors) = first.asked
    assert leader != sibling
    assert not none
    assert {prior.grade for prior in priors} == {Grade.CLUSTER}
    assert {prior.record.workload_key for prior in priors} == {leader}
    assert {prior.record.run_id for prior in priors} == {first.database.run_id}


def test_priors_meet_their_own_sketch_under_other_names(first: Tuned) -> None:
    for mod in task_modules(network()):
        strategy = DiffusionSearch(first.database.priors_of)
        context, spaces = programs.context_of(mod)
        strategy._initialize_with_tune_context(context)
        strategy.pre_tuning(4, 4, spaces)
        assert strategy.generate_measure_candidates()
        assert strategy.search is not None
        sketches = [space.sketch for space in strategy.search.spaces]
        assert {prior.record.sketch for prior in first.database.priors_of(mod)} <= set(sketches)


def test_a_later_run_begins_with_what_was_measured(copied: Registry, pool: WarmPool, tmp_path: Path) -> None:
    before = {record.run_id for record in copied.list_records()}
    with WarmPool(TARGET, n_workers=1, min_repeat_ms=2.0, lock_path=tmp_path / "lock") as later:
        database = RegistryDatabase(copied, TARGET, measurement=later.measurement)
        tuned = tune(database, later, tmp_path)
    for key, priors in tuned.asked:
        assert priors[0].record.workload_key == key
        assert priors[0].grade is Grade.STALE
        assert before <= {prior.record.run_id for prior in priors} <= {*before, database.run_id}
    assert 1 <= len(database) < 12  # only what the first run has left of each task's trials
    assert computes_the_right_thing(scheduled(network(), database))


def test_a_renamed_twin_is_served_the_same_records(first: Tuned) -> None:
    twin = canonicalise(network())
    for mod, renamed in zip(task_modules(network()), task_modules(twin), strict=True):
        assert served(first.database, renamed) == served(first.database, mod)
        assert first.database.has_workload(renamed)
    assert n_scheduled(scheduled(twin, first.database)) == 2
    assert computes_the_right_thing(scheduled(twin, first.database))


def test_published_records_are_served_under_any_names_and_not_measured_again(
    copied: Registry, pool: WarmPool, tmp_path: Path
) -> None:
    database = publish_best(copied, pool)
    for mod in (network(), canonicalise(network())):
        compiled = scheduled(mod, database)
        assert n_scheduled(compiled) == 2
        assert computes_the_right_thing(compiled)
    tuned = tune(database, pool, tmp_path)
    assert tuned.asked == []
    assert len(database) == 0


def test_only_what_was_checked_or_measured_here_is_served(copied: Registry, first: Tuned, pool: WarmPool) -> None:
    [mod, *_] = task_modules(network())
    assert served(first.database, mod) is not None
    later = RegistryDatabase(copied, TARGET, measurement=pool.measurement)
    assert served(later, mod) is None
    unchecked = RegistryDatabase(copied, TARGET, measurement=pool.measurement, unchecked=True)
    assert served(unchecked, mod) is not None
    assert unchecked.query_schedule(mod, TARGET, "main") is not None
    assert unchecked.query_ir_module(mod, TARGET, "main") is not None


def test_another_target_or_environment_is_served_nothing(copied: Registry, first: Tuned, pool: WarmPool) -> None:
    published = publish_best(copied, pool)
    elsewhere = RegistryDatabase(copied, TARGET, measurement={"repeat": 99})
    foreign = RegistryDatabase(copied, OTHER_TARGET, measurement=pool.measurement)
    for mod in task_modules(network()):
        assert served(first.database, mod, OTHER_TARGET) is None
        assert served(published, mod) is not None
        assert served(published, mod, OTHER_TARGET) is None
        assert served(elsewhere, mod) is None
        assert served(foreign, mod, OTHER_TARGET) is None
        assert elsewhere.priors_of(mod)
        assert not foreign.priors_of(mod)


def test_the_stock_strategy_and_scheduler_work_on_it(copied: Registry, pool: WarmPool, tmp_path: Path) -> None:
    database = RegistryDatabase(copied, TARGET, measurement=pool.measurement)
    strategy = EvolutionarySearch(population_size=16, init_min_unmeasured=4, genetic_num_iters=1)  # else it takes 10 s a round
    stock = {"strategy": strategy, "cost_model": "xgb", "task_scheduler": "gradient", "op_names": ["fused_matmul_relu"]}
    before = len(copied.list_records())
    tune(database, pool, tmp_path, max_trials_per_task=4, **stock)
    assert len(database) == 4
    assert len(copied.list_records()) > before
    assert n_scheduled(scheduled(network(), database)) == 1


def test_a_scheduler_ends_with_the_space_and_can_be_used_again(copied: Registry, pool: WarmPool, tmp_path: Path) -> None:
    database = RegistryDatabase(copied, TARGET, measurement=pool.measurement)
    scheduler, mod = DiffusionScheduler(database, trials=8), activation()
    tune(database, pool, tmp_path, mod, task_scheduler=scheduler)
    n_first = len(database)
    assert 1 <= n_first < 8
    tune(database, pool, tmp_path, mod, task_scheduler=scheduler)
    assert len(database) > n_first
    assert n_scheduled(scheduled(mod, database)) == 1


def test_the_best_records_come_under_the_names_of_the_workload(copied: Registry, first: Tuned, pool: WarmPool) -> None:
    later = RegistryDatabase(copied, TARGET, measurement=pool.measurement)
    for database in (first.database, later):
        for mod in (*task_modules(network()), *task_modules(canonicalise(network()))):
            workload = database.commit_workload(mod)
            records = database.get_top_k(workload, 2)
            assert len(records) == 2
            assert records[0].run_secs[0].value > 0
            for record in records:
                record.trace.apply_to_schedule(Schedule(mod), remove_postproc=False)


def test_modules_have_the_keys_that_the_tuner_gives_its_own(registry: Registry) -> None:
    lowered = small_networks.lowered(small_networks.conv_network())
    database = RegistryDatabase(registry, lowered.target)
    tasks = relax_integration.extract_tasks(lowered.mod, lowered.target)
    assert {database.names_of(task.dispatched[0]) for task in tasks} == {
        (task.task.workload.key, task.task.workload.cluster) for task in lowered.tasks
    }


def own_record(database: Any, mod: Any, run_secs: list[float]) -> TvmRecord:
    return TvmRecord(Schedule(mod).trace, database.commit_workload(mod), run_secs, TARGET, None)


def open_dimension() -> Any:
    n = tvm.te.var("n")
    a = tvm.te.placeholder((n,), "float32")
    return tvm.IRModule({"main": tvm.te.create_prim_func([a, tvm.te.compute((n,), lambda i: a[i] + 1.0)])})


def test_a_module_without_a_key_lives_in_memory_only(registry: Registry) -> None:
    database, mod = RegistryDatabase(registry, TARGET), open_dimension()
    before = len(registry.list_records())
    assert served(database, mod) is None
    database.commit_tuning_record(own_record(database, mod, [1e-3]))
    assert served(database, mod) is not None
    assert len(registry.list_records()) == before
    assert not database.priors_of(mod)
    assert database.names_of(mod) != database.names_of(programs.relu(4))


def test_failures_are_neither_served_nor_kept(registry: Registry) -> None:
    database, mod = RegistryDatabase(registry, TARGET), programs.relu(7, 3)
    before = len(registry.list_records())
    for run_secs in ([1e10], [0.0], [-1.0]):
        database.commit_tuning_record(own_record(database, mod, run_secs))
    assert len(database) == 3
    assert served(database, mod) is None
    assert database.get_top_k(database.commit_workload(mod), 3) == []
    assert len(registry.list_records()) == before


def test_a_registry_that_fails_costs_neither_the_run_nor_its_results(
    copied: Registry, pool: WarmPool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> Any:
        raise StoreUnavailable("the disk is gone")

    database = RegistryDatabase(copied, TARGET, measurement=pool.measurement)
    [mod, *_] = task_modules(network())
    for name in ("lookup", "keep"):
        monkeypatch.setattr(copied, name, fail)
    assert database.priors_of(mod) == ()
    for latency_s in (1e-3, 1e-4):
        database.commit_tuning_record(own_record(database, mod, [latency_s]))
    assert served(database, mod).run_secs[0].value == 1e-4
    assert [record.message for record in caplog.records] == [
        "the registry was not asked: the disk is gone",
        "a measured record was not kept: the disk is gone",
    ]


def test_a_published_record_that_does_not_replay_is_quarantined(copied: Registry, pool: WarmPool) -> None:
    database = publish_best(copied, pool)
    [mod, *_] = task_modules(network())
    key = database.names_of(mod)[0]
    [best] = [r for r in copied.list_records(workload=key) if r.state is RecordState.PUBLISHED]
    broken = [[["GetSBlock", [], ["no such block", "main"], ["b0"]]], []]
    copied.publish([copied.get_record(best.id).with_state(RecordState.PUBLISHED, trace=broken)])
    assert served(database, mod) is None
    [marked] = [r for r in copied.list_records(workload=key) if r.id == best.id]
    assert marked.state is RecordState.QUARANTINED
