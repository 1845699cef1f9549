"""Hostile bytes for every format that is read: `python -m tests.fuzzing --inputs 100000`."""
