"""The first tables: environments, workloads, networks, records, cost models and runs.

Revision: 0001, after nothing
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_DIGEST = sa.String(64)


def upgrade() -> None:
    """Make the tables, those that others refer to first."""
    _create_environments()
    _create_workloads()
    _create_networks()
    _create_records()
    _create_cost_models()
    _create_runs()


def downgrade() -> None:
    """Drop the tables and all that is in them."""
    for table in (
        "bcd_runs",
        "bcd_cost_models",
        "bcd_records",
        "bcd_network_tasks",
        "bcd_networks",
        "bcd_workloads",
        "bcd_environments",
    ):
        op.drop_table(table)


def _create_environments() -> None:
    op.create_table(
        "bcd_environments",
        sa.Column("key", _DIGEST, nullable=False),
        sa.Column("fields", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_bcd_environments"),
    )


def _create_workloads() -> None:
    op.create_table(
        "bcd_workloads",
        sa.Column("key", _DIGEST, nullable=False),
        sa.Column("cluster", _DIGEST, nullable=False),
        sa.Column("anchor", _DIGEST, nullable=False),
        sa.Column("extents", sa.Text(), nullable=False),
        sa.Column("anchor_extents", sa.Text(), nullable=False),
        sa.Column("flops", sa.Double(), nullable=False),
        sa.Column("bytes_moved", sa.Double(), nullable=False),
        sa.Column("op", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_bcd_workloads"),
    )
    op.create_index("ix_bcd_workloads_anchor", "bcd_workloads", ["anchor"])
    op.create_index("ix_bcd_workloads_cluster", "bcd_workloads", ["cluster"])


def _create_networks() -> None:
    op.create_table(
        "bcd_networks",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("digest", _DIGEST, nullable=False),
        sa.Column("shapes", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", "version", name="pk_bcd_networks"),
    )
    op.create_table(
        "bcd_network_tasks",
        sa.Column("network", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("workload_key", _DIGEST, nullable=False),
        sa.Column("weight", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["network", "version"],
            ["bcd_networks.name", "bcd_networks.version"],
            name="fk_bcd_network_tasks_network_version",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(["workload_key"], ["bcd_workloads.key"], name="fk_bcd_network_tasks_workload_key"),
        sa.PrimaryKeyConstraint("network", "version", "position", name="pk_bcd_network_tasks"),
    )
    op.create_index("ix_bcd_network_tasks_workload_key", "bcd_network_tasks", ["workload_key"])


def _create_records() -> None:
    op.create_table(
        "bcd_records",
        sa.Column("id", _DIGEST, nullable=False),
        sa.Column("workload_key", _DIGEST, nullable=False),
        sa.Column("environment_key", _DIGEST, nullable=False),
        sa.Column("trace_digest", _DIGEST, nullable=False),
        sa.Column("sketch", _DIGEST, nullable=False),
        sa.Column("decisions", sa.Text(), nullable=False),
        sa.Column("run_times_s", sa.Text(), nullable=False),
        sa.Column("median_s", sa.Double(), nullable=False),
        sa.Column("untuned_s", sa.Double(), nullable=True),
        sa.Column("trials", sa.Integer(), nullable=False),
        sa.Column("depth", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("parent_id", _DIGEST, nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["environment_key"], ["bcd_environments.key"], name="fk_bcd_records_environment_key"),
        sa.ForeignKeyConstraint(["workload_key"], ["bcd_workloads.key"], name="fk_bcd_records_workload_key"),
        sa.PrimaryKeyConstraint("id", name="pk_bcd_records"),
    )
    op.create_index("ix_bcd_records_created_at", "bcd_records", ["created_at"])
    op.create_index("ix_bcd_records_trace_digest", "bcd_records", ["trace_digest"])
    op.create_index("ix_bcd_records_workload_key_environment_key", "bcd_records", ["workload_key", "environment_key"])


def _create_cost_models() -> None:
    op.create_table(
        "bcd_cost_models",
        sa.Column("id", _DIGEST, nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("booster_digest", _DIGEST, nullable=False),
        sa.Column("samples_digest", _DIGEST, nullable=False),
        sa.Column("metadata", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_bcd_cost_models"),
    )
    op.create_index("ix_bcd_cost_models_target_created_at", "bcd_cost_models", ["target", "created_at"])


def _create_runs() -> None:
    op.create_table(
        "bcd_runs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("network", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("environment_key", _DIGEST, nullable=False),
        sa.Column("seed", sa.Text(), nullable=False),
        sa.Column("trials", sa.Integer(), nullable=False),
        sa.Column("tuning_s", sa.Double(), nullable=False),
        sa.Column("finished", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("report", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_bcd_runs"),
    )
    op.create_index("ix_bcd_runs_created_at", "bcd_runs", ["created_at"])
    op.create_index("ix_bcd_runs_network_version", "bcd_runs", ["network", "version"])
