"""Rows in a relational database: the only place that knows SQLAlchemy and alembic."""
