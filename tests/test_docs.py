"""The documents' code runs, and the files they name are there."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PLAIN_TVM = "docs/plain-tvm.md"
DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", PLAIN_TVM)


def blocks(document: str, language: str) -> list[str]:
    """Code blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / document).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_python_of_the_readme_tunes_a_network(tmp_path: Path) -> None:
    shutil.copy(ROOT / "bcd-registry.toml", tmp_path)
    for block in blocks("README.md", "python"):
        command = [sys.executable, "-c", block]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=400)
        assert done.returncode == 0, done.stderr
        assert "cold" in done.stdout


def test_the_script_in_plain_tvm_runs_and_the_second_time_begins_with_the_first(tmp_path: Path) -> None:
    [script] = blocks(PLAIN_TVM, "python")
    done = [
        subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=200)
        for _ in range(2)
    ]
    assert [run.returncode for run in done] == [0, 0], done[0].stderr + done[1].stderr
    measured = [int(n) for run in done for n in re.findall(r"^(\d+) candidates measured", run.stdout, re.MULTILINE)]
    assert measured == [12, 8]


def test_toml_of_the_readme_is_the_demo(tmp_path: Path) -> None:
    demo = tomllib.loads((ROOT / "bcd-registry.toml").read_text(encoding="utf-8"))
    [shown] = [tomllib.loads(block) for block in blocks("README.md", "toml")]
    for name, value in demo["networks"]["v2"].items():
        assert shown["networks"]["v2"][name] == value


@pytest.mark.parametrize("document", DOCUMENTS)
def test_relative_links_lead_somewhere(document: str) -> None:
    text = re.sub(r"^```.*?^```", "", (ROOT / document).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    assert [link for link in links if not (ROOT / document).parent.joinpath(link).exists()] == []


def test_make_targets_of_the_documents_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for document in DOCUMENTS:
        named = re.findall(r"`make ([a-z]+)`", (ROOT / document).read_text(encoding="utf-8"))
        assert set(named) <= targets


def test_commands_of_the_readme_exist() -> None:
    named = set(re.findall(r"`bcd-registry ([a-z]+)", (ROOT / "README.md").read_text(encoding="utf-8")))
    script = Path(sys.executable).with_name("bcd-registry")
    listed = subprocess.run([script, "--help"], capture_output=True, text=True, check=True).stdout
    assert named
    assert {name for name in named if not re.search(rf"^  {name} ", listed, re.MULTILINE)} == set()
