"""What keeping house removes, decided anew in the transaction that removes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Engine, delete

from . import statements, tables
from .engines import transaction
from .statements import among


class Keeping:
    """The part of the SQL catalog that keeps house."""

    _engine: Engine

    def remove_beaten(self, ids: Sequence[str], keep: int) -> list[str]:
        """See `Catalog.remove_beaten`. The records are locked first, so that the decision sees every write before it."""
        table = tables.records
        with transaction(self._engine, write=True) as connection:
            connection.execute(statements.locked_records(connection, ids))
            beaten = statements.still_beaten(connection, ids, keep)
            removal = delete(table).where(table.c.id.in_(beaten)).returning(table.c.id)
            removed = list(connection.execute(removal).scalars())
            connection.execute(statements.forget_invalidations(connection, removed))
            return removed

    def outdated_cost_models(self, keep: int) -> Mapping[str, tuple[str, str]]:
        """See `Catalog.outdated_cost_models`."""
        with transaction(self._engine, write=False) as connection:
            found = connection.execute(statements.outdated_cost_models(keep))
            return {row.id: (row.booster_digest, row.samples_digest) for row in found}

    def remove_cost_models(self, ids: Sequence[str]) -> None:
        """See `Catalog.remove_cost_models`."""
        table = tables.cost_models
        with transaction(self._engine, write=True) as connection:
            connection.execute(delete(table).where(among(connection, table.c.id, ids)))
