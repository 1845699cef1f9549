"""`--help` of every command, the page that is made of it, and the completion of shells."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import command_reference
from tests.command_reference import COMMAND, PAGE, PROGRAM, help_of, is_group, iter_commands

EVERY = list(iter_commands())
GROUPS = [words for words in EVERY if is_group(words)]
COMMANDS = [words for words in EVERY if words not in GROUPS]
SCRIPT = Path(sys.executable).with_name(PROGRAM)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_has_an_example_that_fits(words: tuple[str, ...]) -> None:
    text = help_of(words)
    assert f"Example:\n    bcd-registry {' '.join(words)}" in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("words", GROUPS, ids=lambda words: " ".join(words) or "bcd-registry")
def test_no_line_of_a_list_of_commands_is_cut(words: tuple[str, ...]) -> None:
    text = help_of(words)
    assert max(map(len, text.splitlines())) <= 80
    listed = text.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    assert {line.split()[0] for line in listed} == {each[-1] for each in EVERY if each and each[:-1] == words}
    assert [line for line in listed if not line.endswith(".") or line.endswith("...")] == []


def test_the_reference_is_what_help_prints() -> None:
    assert PAGE.read_text(encoding="utf-8") == command_reference.reference(), f"stale: run `{COMMAND}`"


def bash(home: Path, line: str, **variables: str) -> str:
    """What a bash, which stays the parent of what it runs, prints with this home."""
    environment = {**os.environ, "HOME": str(home), "PATH": f"{SCRIPT.parent}:{os.environ['PATH']}", **variables}
    shell = ["bash", "--noprofile", "--norc", "-c", f"{line}; exit $?"]
    done = subprocess.run(shell, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_completion_installs_and_completes(tmp_path: Path) -> None:
    assert "_bcd_registry_completion" in bash(tmp_path, "bcd-registry --show-completion")
    assert list(tmp_path.iterdir()) == []
    assert "bash completion installed" in bash(tmp_path, "bcd-registry --install-completion")
    call = "_bcd_registry_completion bcd-registry && echo ${COMPREPLY[*]}"
    for given, expected in ((["bcd-registry", "in"], "invalidate"), (["bcd-registry", "networks", ""], "delete list show")):
        typed = " ".join(map(repr, given))
        line = f"source ~/.bashrc && COMP_WORDS=({typed}) COMP_CWORD={len(given) - 1} && {call}"
        assert sorted(bash(tmp_path, line).split()) == expected.split()
