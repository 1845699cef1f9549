"""The tables as SQLAlchemy sees them. Migrations make them; a test proves that the two agree.

Column types are those that SQLite and PostgreSQL share. JSON is canonical text: it is read back as it was written.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    text,
)

DIGEST_LENGTH = 64
"""Hex digits of a SHA-256 digest."""

VERSION_TABLE = "bcd_alembic_version"
"""Not alembic's own name: MLflow may keep its tables, and its `alembic_version`, in the same database."""

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    }
)

environments = Table(
    "bcd_environments",
    metadata,
    Column("key", String(DIGEST_LENGTH), primary_key=True),
    Column("fields", Text, nullable=False),
)

workloads = Table(
    "bcd_workloads",
    metadata,
    Column("key", String(DIGEST_LENGTH), primary_key=True),
    Column("cluster", String(DIGEST_LENGTH), nullable=False, index=True),
    Column("anchor", String(DIGEST_LENGTH), nullable=False, index=True),
    Column("extents", Text, nullable=False),
    Column("anchor_extents", Text, nullable=False),
    Column("flops", Double, nullable=False),
    Column("bytes_moved", Double, nullable=False),
    Column("op", Text, nullable=False, index=True),
    Column("description", Text, nullable=False),
)

networks = Table(
    "bcd_networks",
    metadata,
    Column("name", Text, primary_key=True),
    Column("version", Text, primary_key=True),
    Column("source", Text, nullable=False),
    Column("digest", String(DIGEST_LENGTH), nullable=False),
    Column("shapes", Text, nullable=False),
    Column("created_at", Double, nullable=False),
)

network_tasks = Table(
    "bcd_network_tasks",
    metadata,
    Column("network", Text, primary_key=True),
    Column("version", Text, primary_key=True),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
    Column("workload_key", String(DIGEST_LENGTH), ForeignKey("bcd_workloads.key"), nullable=False, index=True),
    Column("weight", Integer, nullable=False),
    ForeignKeyConstraint(["network", "version"], ["bcd_networks.name", "bcd_networks.version"], ondelete="CASCADE"),
)

records = Table(
    "bcd_records",
    metadata,
    Column("id", String(DIGEST_LENGTH), primary_key=True),
    Column("workload_key", String(DIGEST_LENGTH), ForeignKey("bcd_workloads.key"), nullable=False),
    Column("environment_key", String(DIGEST_LENGTH), ForeignKey("bcd_environments.key"), nullable=False),
    Column("trace_digest", String(DIGEST_LENGTH), nullable=False, index=True),
    Column("sketch", String(DIGEST_LENGTH), nullable=False),
    Column("decisions", Text, nullable=False),
    Column("run_times_s", Text, nullable=False),
    Column("median_s", Double, nullable=False),
    Column("untuned_s", Double),
    Column("trials", Integer, nullable=False),
    Column("depth", Integer, nullable=False),
    Column("state", String(16), nullable=False),
    Column("reason", Text, nullable=False),
    Column("run_id", Text, nullable=False),
    Column("parent_id", String(DIGEST_LENGTH), index=True),
    Column("created_at", Double, nullable=False, index=True),
    Column("cost_model_id", String(DIGEST_LENGTH)),
    Column("drift", Text, nullable=False, server_default=text("''")),
    Column("invalidated", String(DIGEST_LENGTH), nullable=False, server_default=text("''")),
    # A lookup ranks the records of a workload within this index and reads only the best of them.
    Index("ix_bcd_records_best", "workload_key", "environment_key", "state", "median_s", "id", "invalidated"),
)

refutations = Table(
    "bcd_refutations",
    metadata,
    Column("record_id", String(DIGEST_LENGTH), ForeignKey("bcd_records.id", ondelete="CASCADE"), primary_key=True),
    Column("workload_key", String(DIGEST_LENGTH), ForeignKey("bcd_workloads.key"), primary_key=True),
    Column("environment_key", String(DIGEST_LENGTH), ForeignKey("bcd_environments.key"), primary_key=True),
    Column("cluster", String(DIGEST_LENGTH), nullable=False, index=True),
    Column("distance", Double),
    Column("ratio", Double),
    Column("run_id", Text, nullable=False),
    Column("created_at", Double, nullable=False),
)

events = Table(
    "bcd_events",
    metadata,
    Column("id", String(DIGEST_LENGTH), primary_key=True),
    Column("kind", String(16), nullable=False),
    Column("reason", Text, nullable=False),
    Column("selection", Text, nullable=False),
    Column("created_at", Double, nullable=False, index=True),
)

# Refers to no record: what was said of one outlives it.
event_records = Table(
    "bcd_event_records",
    metadata,
    Column("event_id", String(DIGEST_LENGTH), ForeignKey("bcd_events.id", ondelete="CASCADE"), primary_key=True),
    Column("record_id", String(DIGEST_LENGTH), primary_key=True, index=True),
    Column("undone_by", String(DIGEST_LENGTH)),
)

cost_models = Table(
    "bcd_cost_models",
    metadata,
    Column("id", String(DIGEST_LENGTH), primary_key=True),
    Column("target", Text, nullable=False),
    Column("booster_digest", String(DIGEST_LENGTH), nullable=False),
    Column("samples_digest", String(DIGEST_LENGTH), nullable=False),
    Column("metadata", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Index("ix_bcd_cost_models_target_created_at", "target", "created_at"),
)

runs = Table(
    "bcd_runs",
    metadata,
    Column("id", Text, primary_key=True),
    Column("network", Text, nullable=False),
    Column("version", Text, nullable=False),
    Column("environment_key", String(DIGEST_LENGTH), nullable=False),
    Column("seed", Text, nullable=False),
    Column("trials", Integer, nullable=False),
    Column("tuning_s", Double, nullable=False),
    Column("finished", Boolean, nullable=False),
    Column("created_at", Double, nullable=False, index=True),
    Column("report", Text, nullable=False),
    Index("ix_bcd_runs_network_version", "network", "version"),
)

pins = Table(
    "bcd_pins",
    metadata,
    Column("network", Text, primary_key=True),
    Column("version", Text, primary_key=True),
    Column("created_at", Double, nullable=False),
)

leases = Table(
    "bcd_leases",
    metadata,
    Column("name", Text, primary_key=True),
    Column("holder", Text, nullable=False),
    Column("token", BigInteger, nullable=False),
    Column("expires_at", Double, nullable=False),
)
