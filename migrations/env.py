"""Runs the migrations on the connection it is given; `bcd_registry.catalog.schema` is the only caller."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection

from bcd_registry.catalog.tables import VERSION_TABLE, metadata


def run(connection: Connection) -> None:
    """Migrate within the connection's own transaction, which its owner commits or rolls back."""
    context.configure(
        connection=connection,
        target_metadata=metadata,
        version_table=VERSION_TABLE,
        render_as_batch=connection.dialect.name == "sqlite",
        transactional_ddl=True,
    )
    context.run_migrations()


run(context.config.attributes["connection"])
