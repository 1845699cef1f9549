"""Who taught whom: what a record was diffused from, and what was diffused from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .model import Json, TuningRecord, Workload
from .naming import find_record
from .registry import Registry


@dataclass(frozen=True, slots=True)
class Lineage:
    """A record between its ancestors and its descendants.

    Attributes:
        ancestors: Nearest first, as far as they are stored.
        descendants: Over all generations, oldest first.
        workloads: The workload of each, by key.
        refuted: How many workloads of these clusters each misled, by the record's id; none where it is not in it.
    """

    record: TuningRecord
    ancestors: tuple[TuningRecord, ...]
    descendants: tuple[TuningRecord, ...]
    workloads: Mapping[str, Workload]
    refuted: Mapping[str, int]

    @property
    def forgotten(self) -> str:
        """Id of the prior that the first ancestor was diffused from and that is not stored any more; empty for none."""
        first = self.ancestors[-1] if self.ancestors else self.record
        return first.parent_id or ""

    def nodes(self) -> Iterator[tuple[int, TuningRecord]]:
        """Every record once with its generation, from 0; each followed by what was diffused from it."""
        line = [*reversed(self.ancestors), self.record]
        yield from enumerate(line[:-1])
        children: dict[str, list[TuningRecord]] = {}
        for child in self.descendants:
            children.setdefault(child.parent_id or "", []).append(child)
        seen, waiting = {record.id for record in self.ancestors}, [(len(line) - 1, self.record)]
        while waiting:
            generation, record = waiting.pop()
            if record.id not in seen:
                seen.add(record.id)
                yield generation, record
                waiting += [(generation + 1, child) for child in reversed(children.get(record.id, ()))]

    def marks(self, record: TuningRecord) -> list[str]:
        """What speaks against the record: `invalidated`, `drifted`, `refuted for 2 workloads`."""
        n_refuted = self.refuted.get(record.id, 0)
        marks = ["invalidated"] * bool(record.invalidated) + ["drifted"] * bool(record.drift)
        return [*marks, f"refuted for {n_refuted} workload{'s' if n_refuted > 1 else ''}"] if n_refuted else marks

    def as_json(self) -> dict[str, Json]:
        """Plain JSON: the records in the order of `nodes`."""
        return {
            "record": self.record.id,
            "forgotten": self.forgotten or None,
            "records": [{"generation": generation, **self._row(record)} for generation, record in self.nodes()],
        }

    def _row(self, record: TuningRecord) -> dict[str, Json]:
        workload = self.workloads.get(record.workload_key)
        return {
            "id": record.id,
            "parent_id": record.parent_id,
            "workload_key": record.workload_key,
            "op": workload.op if workload else None,
            "extents": list(workload.extents) if workload else None,
            "state": record.state,
            "median_ms": record.median_s * 1e3,
            "run_id": record.run_id,
            "cost_model_id": record.cost_model_id,
            "invalidated": record.invalidated or None,
            "drift": record.drift or None,
            "refuted": self.refuted.get(record.id, 0),
        }


def find_lineage(registry: Registry, id_prefix: str) -> Lineage:
    """The lineage of the one record whose id begins so.

    Raises:
        ConfigError: It is not hexadecimal.
        NotFound: None, or more than one.
    """
    record = find_record(registry, id_prefix)
    ancestors, descendants = registry.ancestors(record.id), registry.descendants([record.id])
    everybody = (*ancestors, record, *descendants)
    workloads = registry.get_workloads(list(dict.fromkeys(r.workload_key for r in everybody)))
    refutations = registry.find_known(list(workloads.values())).refutations if workloads else ()
    misled = {(refutation.record_id, refutation.workload_key) for refutation in refutations}
    refuted = Counter(record_id for record_id, _ in misled)
    return Lineage(record, tuple(ancestors), tuple(descendants), workloads, refuted)
