"""What a lookup reads of the catalog: of the relatives of a workload, which may be thousands, the nearest few."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence

from .candidates import MAX_RECORDS, Index
from .lookup import Known, grade_workload, is_exact
from .model import Environment, Grade, Match, Refutation, Relative, TuningRecord, Workload
from .ports import Catalog
from .staleness import DEFAULT_POLICY, StalenessPolicy


class Reading:
    """One lookup of some workloads. The number of its queries does not grow with what is looked up or with what is there.

    Which relatives there are is known before any is read, with the environments that rule them out; and what was ever refuted
    of them is read at once. So the nearest that may be diffused from are chosen before they are read. Used by one thread.
    """

    def __init__(
        self,
        catalog: Catalog,
        workloads: Sequence[Workload],
        environment: Environment,
        depths: Mapping[str, int],
        *,
        policy: StalenessPolicy = DEFAULT_POLICY,
        now_s: float = 0.0,
        left_out: Collection[str] = (),
    ) -> None:
        """Read the workloads' own records, and those of siblings that misled.

        Args:
            depths: The `--trials` asked, by workload key.
            policy: What a difference in version, and an age, mean.
            now_s: Unix seconds, from which ages count.
            left_out: Ids of records that are not to be used.
        """
        self.digests: dict[str, str] = {}
        """The digest of the trace of each record that was read, by id."""
        self._catalog, self._workloads, self._depths, self._left_out = catalog, workloads, depths, left_out
        self._index = Index(environment, policy, now_s)
        self._relatives: dict[str, Workload] = {}
        self._records: dict[str, dict[str, TuningRecord]] = {}
        self._refutations: Sequence[Refutation] | None = None
        self._anchors: set[str] = set()
        clusters = unique(workload.cluster for workload in workloads)
        if self._know(catalog.find_relatives(clusters=clusters)):
            self._read(unique(w.key for w in workloads if w.key in self._relatives), refuted_in=self._misled(clusters))

    def grade(self) -> list[Match]:
        """Read the nearest of the workloads that need them, and grade: as if all had been read. No record has its trace."""
        whole = False
        while not whole:
            waiting = [workload for workload in self._workloads if not self._is_exact(workload)]
            self._know_cousins(self._index.orphans(waiting))
            whole = self._read(self._index.wanted(waiting))
        return [grade_workload(workload, self._index, self._depths.get(workload.key, 0)) for workload in self._workloads]

    def leave_out(self, ids: Collection[str]) -> None:
        """Forget records that turned out to be bad; `grade` then reads further ones where they are missed."""
        for key, records in self._records.items():
            if not records.keys().isdisjoint(ids):
                self._records[key] = {record_id: record for record_id, record in records.items() if record_id not in ids}
                self._index.add_read(self._relatives[key], self._records[key])

    def described(self, matches: Sequence[Match]) -> list[Match]:
        """The matches with the descriptions of the priors' workloads, which are long, and read for no others."""
        priors = itertools.chain.from_iterable(match.priors for match in matches)
        keys = unique(prior.workload.key for prior in priors if prior.grade is not Grade.STALE)
        whole = self._catalog.get_workloads(keys) if keys else {}
        return [_with_workloads(match, whole) for match in matches]

    def _is_exact(self, workload: Workload) -> bool:
        asked = self._depths.get(workload.key, 0)
        return any(is_exact(candidate, asked) for candidate in self._index.own(workload))

    def _know_cousins(self, orphans: Sequence[Workload]) -> None:
        """Learn of those with the anchors of workloads that have no sibling to be diffused from."""
        anchors = unique(workload.anchor for workload in orphans if workload.anchor not in self._anchors)
        self._anchors.update(anchors)
        if anchors and self._know(self._catalog.find_relatives(anchors=anchors)):
            self._read((), refuted_in=self._misled(unique(workload.cluster for workload in orphans)))

    def _know(self, relatives: Iterable[Relative]) -> bool:
        """Take those that are new, with their environments; returns whether there are any."""
        new = [relative for relative in relatives if relative.workload.key not in self._relatives]
        if not new:
            return False
        used = [*itertools.chain.from_iterable(relative.n_records for relative in new)]
        if self._refutations is None:
            self._refutations = self._catalog.find_refutations(unique(workload.cluster for workload in self._workloads))
            self._index.add_refutations(self._refutations)
            used += [refutation.environment_key for refutation in self._refutations]
        unknown = unique(key for key in used if key not in self._index.hard)
        if unknown:
            self._index.add_environments(self._catalog.get_environments(unknown))
        for relative in new:
            self._relatives[relative.workload.key] = relative.workload
            self._index.add_unread(relative)
        return True

    def _misled(self, clusters: Iterable[str]) -> list[str]:
        """Those of the clusters in which something was refuted."""
        misled = {refutation.cluster for refutation in self._refutations or ()}
        return [cluster for cluster in clusters if cluster in misled]

    def _read(self, keys: Sequence[str], refuted_in: Sequence[str] = ()) -> bool:
        """Read the workloads' records, but for what was stored since the relatives were found.

        Returns:
            Whether each of the workloads has one that can be used.
        """
        if not keys and not refuted_in:
            return True
        found: dict[str, dict[str, TuningRecord]] = {key: {} for key in keys}
        for record, digest in self._catalog.find_records(workloads=keys, refuted_in=refuted_in, per_workload=MAX_RECORDS):
            record_id = record.id
            if record.environment_key in self._index.hard and record_id not in self._left_out:
                found.setdefault(record.workload_key, {})[record_id] = record
                self.digests[record_id] = digest
        known = {key: records for key, records in found.items() if key in self._relatives}
        self._records |= known
        for key, records in known.items():
            self._index.add_read(self._relatives[key], records)
        return all(self._index.own(self._relatives[key]) for key in keys)


def read_known(catalog: Catalog, workloads: Sequence[Workload], *, left_out: Collection[str] = ()) -> Known:
    """All records of the workloads and their relatives, not only those of the nearest: to explain, since it may be thousands.

    What refers to a damaged row is left out with it.
    """
    clusters = unique(w.cluster for w in workloads)
    found = catalog.find_records(
        workloads=unique(w.key for w in workloads), clusters=clusters, anchors=unique(w.anchor for w in workloads)
    )
    if not found:
        return Known((), {}, {})
    records = [record for record, _ in found if record.id not in left_out]
    refutations = catalog.find_refutations(clusters)
    stored = catalog.get_workloads(unique(record.workload_key for record in records))
    measured = [r.environment_key for r in records] + [r.environment_key for r in refutations]
    environments = catalog.get_environments(unique(measured))
    return Known(
        records=[r for r in records if r.workload_key in stored and r.environment_key in environments],
        workloads=stored,
        environments=environments,
        refutations=[r for r in refutations if r.environment_key in environments],
    )


def unique(keys: Iterable[str]) -> list[str]:
    """Each once, in the order of first appearance."""
    return list(dict.fromkeys(keys))


def _with_workloads(match: Match, whole: Mapping[str, Workload]) -> Match:
    priors = (dataclasses.replace(prior, workload=whole.get(prior.workload.key, prior.workload)) for prior in match.priors)
    return dataclasses.replace(match, priors=tuple(priors))
