"""Priors that misled a workload, so that later runs leave them out.

Revision: 0002, after 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_DIGEST = sa.String(64)


def upgrade() -> None:
    """Make the table. An infinite distance or ratio is NULL in it: databases do not agree on how to spell infinity."""
    op.create_table(
        "bcd_refutations",
        sa.Column("record_id", _DIGEST, nullable=False),
        sa.Column("workload_key", _DIGEST, nullable=False),
        sa.Column("environment_key", _DIGEST, nullable=False),
        sa.Column("cluster", _DIGEST, nullable=False),
        sa.Column("distance", sa.Double(), nullable=True),
        sa.Column("ratio", sa.Double(), nullable=True),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["record_id"], ["bcd_records.id"], name="fk_bcd_refutations_record_id", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["workload_key"], ["bcd_workloads.key"], name="fk_bcd_refutations_workload_key"),
        sa.ForeignKeyConstraint(["environment_key"], ["bcd_environments.key"], name="fk_bcd_refutations_environment_key"),
        sa.PrimaryKeyConstraint("record_id", "workload_key", "environment_key", name="pk_bcd_refutations"),
    )
    op.create_index("ix_bcd_refutations_cluster", "bcd_refutations", ["cluster"])


def downgrade() -> None:
    """Drop the table and what it remembers."""
    op.drop_table("bcd_refutations")
