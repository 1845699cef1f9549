"""What a lookup reads of the catalog: of the relatives of a workload, which may be thousands, the nearest few."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence

from .lookup import MAX_RECORDS, Known, grade_workloads, wanted_workloads
from .model import Environment, Grade, Match, Refutation, Relative, TuningRecord, Workload
from .ports import Catalog
from .staleness import DEFAULT_POLICY, StalenessPolicy


class Reading:
    """What one lookup has read so far. The number of queries does not grow with what is looked up or with what is there.

    Everything that was refuted is read at once, so that what is left unread may be diffused from; and what its environment
    rules out is known before it is read. So the nearest can be chosen before they are read.
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
        """Read the workloads' own records, and those of relatives that misled their clusters.

        Args:
            depths: The `--trials` asked, by workload key.
            policy: What a difference in version, and an age, mean.
            now_s: Unix seconds, from which ages count.
            left_out: Ids of records that are not to be used.
        """
        self.digests: dict[str, str] = {}
        """The digest of the trace of each record that was read, by id."""
        self._catalog, self._workloads, self._environment, self._depths = catalog, workloads, environment, depths
        self._policy, self._now_s, self._left_out = policy, now_s, left_out
        self._records: dict[str, TuningRecord] = {}
        self._refutations: Sequence[Refutation] = ()
        self._environments: Mapping[str, Environment] = {}
        clusters, anchors = unique(w.cluster for w in workloads), unique(w.anchor for w in workloads)
        self._relatives = {r.workload.key: r for r in catalog.find_relatives(clusters=clusters, anchors=anchors)}
        self._unread: dict[str, Relative] = dict(self._relatives)
        if self._relatives:
            self._refutations = catalog.find_refutations(clusters)
            self._environments = catalog.get_environments(self._environment_keys())
            self._refutations = [r for r in self._refutations if r.environment_key in self._environments]
            own = unique(w.key for w in workloads if w.key in self._relatives)
            self._read(own, refuted_in=clusters if self._refutations else ())

    @property
    def known(self) -> Known:
        """What was read, and what was not."""
        return Known(
            records=list(self._records.values()),
            workloads={key: relative.workload for key, relative in self._relatives.items()},
            environments=self._environments,
            refutations=self._refutations,
            unread=list(self._unread.values()),
        )

    def grade(self) -> list[Match]:
        """Read the nearest of the workloads that need them, and grade: as if all had been read. No record has its trace."""
        policy, now_s = self._policy, self._now_s
        whole = False
        while not whole:
            known = self.known
            wanted = wanted_workloads(self._workloads, known, self._environment, self._depths, policy=policy, now_s=now_s)
            whole = self._read(wanted)
        return grade_workloads(self._workloads, self.known, self._environment, self._depths, policy=policy, now_s=now_s)

    def leave_out(self, ids: Iterable[str]) -> None:
        """Forget records that turned out to be bad; `grade` then reads further ones where they are missed."""
        for record_id in ids:
            self._records.pop(record_id, None)

    def described(self, matches: Sequence[Match]) -> list[Match]:
        """The matches with the descriptions of the priors' workloads, which are long, and read for no others."""
        priors = itertools.chain.from_iterable(match.priors for match in matches)
        keys = unique(prior.workload.key for prior in priors if prior.grade is not Grade.STALE)
        whole = self._catalog.get_workloads(keys) if keys else {}
        return [_with_workloads(match, whole) for match in matches]

    def _read(self, keys: Sequence[str], refuted_in: Sequence[str] = ()) -> bool:
        """Read the workloads' records, but for what was stored since the relatives were found.

        Returns:
            Whether each of the workloads still has one.
        """
        if not keys and not refuted_in:
            return True
        found = self._catalog.find_records(workloads=keys, refuted_in=refuted_in, per_workload=MAX_RECORDS)
        for record, digest in found:
            record_id = record.id
            known = record.workload_key in self._relatives and record.environment_key in self._environments
            if known and record_id not in self._left_out:
                self._records[record_id] = record
                self.digests[record_id] = digest
            self._unread.pop(record.workload_key, None)
        for key in keys:
            self._unread.pop(key, None)
        return {record.workload_key for record in self._records.values()}.issuperset(keys)

    def _environment_keys(self) -> list[str]:
        measured = itertools.chain.from_iterable(relative.n_records for relative in self._relatives.values())
        return unique(itertools.chain(measured, (refutation.environment_key for refutation in self._refutations)))


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
