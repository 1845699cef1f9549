"""Leases, by which tuners share work, pins of network versions, and an index that ranks the records of a workload.

Revision: 0003, after 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables. A pin refers to no row: to put a version anew replaces its row, and must not unpin it."""
    op.create_table(
        "bcd_pins",
        sa.Column("network", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("network", "version", name="pk_bcd_pins"),
    )
    op.create_table(
        "bcd_leases",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_bcd_leases"),
    )
    op.create_index("ix_bcd_records_best", "bcd_records", ["workload_key", "environment_key", "state", "median_s", "id"])
    op.drop_index("ix_bcd_records_workload_key_environment_key", "bcd_records")


def downgrade() -> None:
    """Drop the tables and what is in them, and put the narrower index back."""
    op.create_index("ix_bcd_records_workload_key_environment_key", "bcd_records", ["workload_key", "environment_key"])
    op.drop_index("ix_bcd_records_best", "bcd_records")
    op.drop_table("bcd_leases")
    op.drop_table("bcd_pins")
