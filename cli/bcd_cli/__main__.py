"""`python -m bcd_cli`."""

from bcd_cli.main import main

main()
