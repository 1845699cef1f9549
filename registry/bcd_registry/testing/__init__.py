"""The contract suites that every implementation of a port passes, and values to test with. Needs pytest and Hypothesis."""
