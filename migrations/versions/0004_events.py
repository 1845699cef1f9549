"""What became of records: events, drift, invalidations and the cost model that ranked them; lineage by an index.

Revision: 0004, after 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_BEST = ["workload_key", "environment_key", "state", "median_s", "id"]


def upgrade() -> None:
    """Make the tables and columns. Events refer to no record: what was said of one outlives it."""
    op.create_table(
        "bcd_events",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("selection", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_bcd_events"),
    )
    op.create_index("ix_bcd_events_created_at", "bcd_events", ["created_at"])
    op.create_table(
        "bcd_event_records",
        sa.Column("event_id", sa.String(64), nullable=False),
        sa.Column("record_id", sa.String(64), nullable=False),
        sa.Column("undone_by", sa.String(64)),
        sa.ForeignKeyConstraint(["event_id"], ["bcd_events.id"], name="fk_bcd_event_records_event_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("event_id", "record_id", name="pk_bcd_event_records"),
    )
    op.create_index("ix_bcd_event_records_record_id", "bcd_event_records", ["record_id"])
    op.add_column("bcd_records", sa.Column("cost_model_id", sa.String(64)))
    op.add_column("bcd_records", sa.Column("drift", sa.Text(), nullable=False, server_default=sa.text("''")))
    op.add_column("bcd_records", sa.Column("invalidated", sa.String(64), nullable=False, server_default=sa.text("''")))
    op.drop_index("ix_bcd_records_best", "bcd_records")
    op.create_index("ix_bcd_records_best", "bcd_records", [*_BEST, "invalidated"])
    op.create_index("ix_bcd_records_parent_id", "bcd_records", ["parent_id"])
    op.create_index("ix_bcd_workloads_op", "bcd_workloads", ["op"])


def downgrade() -> None:
    """Drop them. An older release knows no invalidations: what was taken back is quarantined, so that it is served no more."""
    op.execute("UPDATE bcd_records SET state = 'quarantined', reason = 'invalidated' WHERE invalidated <> ''")
    op.drop_index("ix_bcd_workloads_op", "bcd_workloads")
    op.drop_index("ix_bcd_records_parent_id", "bcd_records")
    op.drop_index("ix_bcd_records_best", "bcd_records")
    for name in ("invalidated", "drift", "cost_model_id"):
        op.drop_column("bcd_records", name)
    op.create_index("ix_bcd_records_best", "bcd_records", _BEST)
    op.drop_table("bcd_event_records")
    op.drop_table("bcd_events")
