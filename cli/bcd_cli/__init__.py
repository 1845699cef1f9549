"""The command line of bcd-registry."""
