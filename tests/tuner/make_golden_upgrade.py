"""Tune the network of `upgraded_network` under another release of TVM, and keep the registry as a golden one.

Run once for a release, by hand, with an interpreter that has that TVM and this repository's other pins:

    export PYTHONPATH=tests/tuner/older_tvm:registry:tuner:cli
    python -m tests.tuner.make_golden_upgrade tests/tuner/golden/tvm-0.26.0
"""

from __future__ import annotations

import argparse
import contextlib
import sqlite3
import tempfile
from pathlib import Path

from bcd_registry.settings import load_settings, open_registry
from bcd_tuner.session import TuneRequest, tune
from tests.tuner.upgraded_network import SEED, spec_of, write_network


def make(home: Path) -> None:
    """Fill the home with what one tune finds, and nothing else."""
    settings = load_settings(home=home)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), open_registry(settings) as registry:
        spec = spec_of(write_network(Path("upgraded.onnx")))
        report = tune(TuneRequest(spec, seed=SEED), registry, progress=lambda event: None)
    print(f"{report.trials} trials of {len(report.tasks)} tasks, checked: {report.checked}, {report.notes}")
    catalog = home / "catalog.db"
    with contextlib.closing(sqlite3.connect(catalog)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("VACUUM")
    files = [path for path in home.rglob("*") if path.is_file()]
    print(f"{sum(path.stat().st_size for path in files) >> 10} KiB in {len(files)} files")


def main() -> None:
    """Make it where the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("home", type=Path, help="an empty folder")
    make(parser.parse_args().home.absolute())


if __name__ == "__main__":
    main()
