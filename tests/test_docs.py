"""The documents' code runs, and the files they name are there."""

from __future__ import annotations

import dataclasses
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bcd_cli.main import app
from bcd_registry.settings import load_settings, open_registry
from tests.cli.values import fill_registry
from tests.command_reference import PROGRAM, root_command

ROOT = Path(__file__).parents[1]
PLAIN_TVM = "docs/plain-tvm.md"
PAGES = ("docs/index.md", "docs/pipeline.md", "docs/operators.md", "docs/trust.md", PLAIN_TVM, "docs/commands.md")
DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "infra/README.md", *PAGES)
CHEAP = ("db", "gc", "invalidate", "lineage", "mlflow", "networks", "pin", "publish", "records", "restore", "stats")
"""Commands that are run on a small registry; the others are only parsed."""

EAGER = ("--install-completion",)
NO_COMMANDS = ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "infra/README.md", PLAIN_TVM, "docs/commands.md")
"""Documents whose blocks call the program nowhere."""

CONFIG = """
[networks.v1]
name = "ppocr-det"
version = "v4"
source = "v1.onnx"
"""


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


def commands(document: str) -> list[list[str]]:
    """The words of each `bcd-registry` in the blocks for shells: as they stand, or behind a prompt with what they print."""
    shown = [
        line.removeprefix("$ ") for block in blocks(document, "console") for line in block.splitlines() if line[:2] == "$ "
    ]
    lines = "\n".join([*blocks(document, "sh"), *shown]).replace("\\\n", " ").splitlines()
    words = [shlex.split(re.split(r" (?:\|\||[|>])", line)[0], comments=True) for line in lines]
    return [given[1:] for given in words if given and given[0] == PROGRAM]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_commands_of_the_documents_are_taken_by_the_program(document: str) -> None:
    given = commands(document)
    assert given or document in NO_COMMANDS
    for words in given:
        if words[0] in EAGER:
            continue
        with root_command().make_context(PROGRAM, words) as group:
            name, command, rest = group.command.resolve_command(group, [*group._protected_args, *group.args])
            if command is not None and hasattr(command, "commands"):
                with command.make_context(name, rest, parent=group) as inner:
                    name, command, rest = command.resolve_command(inner, [*inner._protected_args, *inner.args])
            assert command is not None
            command.make_context(name, rest, parent=group).close()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_commands_in_the_text_exist(document: str) -> None:
    text = re.sub(r"^```.*?^```", "", (ROOT / document).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    named = [shlex.split(code.replace("'", "")) for code in re.findall(rf"`{PROGRAM} ([^`]+)`", text)]
    for words in named:
        command = root_command()
        for word in words:
            if word.startswith("-"):
                known = {option for parameter in command.params for option in [*parameter.opts, *parameter.secondary_opts]}
                assert word.partition("=")[0] in {*known, "--help"}, words
            elif hasattr(command, "commands"):
                assert word in command.commands, words
                command = command.commands[word]


@pytest.fixture
def small_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a configuration, and with a home in which v1 is tuned and has one record."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bcd-registry.toml").write_text(CONFIG)
    with open_registry(load_settings(home=tmp_path / "home")) as registry:
        fill_registry(registry)
        network = registry.get_network("net", "v1")
        registry.register_network(dataclasses.replace(network, name="ppocr-det", version="v4"))
    return tmp_path


@pytest.mark.parametrize("document", [document for document in DOCUMENTS if document.startswith("docs/")])
def test_cheap_commands_of_the_pages_run(document: str, small_home: Path) -> None:
    for words in commands(document):
        if words[0] in CHEAP:
            names = ids_of(small_home / "home", take_back=words[0] == "restore")
            given = [names.get(word, word) for word in words]
            result = CliRunner().invoke(app, ["--home", str(small_home / "home"), *given])
            assert result.exit_code == 0, f"{words}: {result.output}"


def ids_of(home: Path, *, take_back: bool) -> dict[str, str]:
    """What the ids in the documents stand for.

    Args:
        take_back: Take the record back first, so that there is something to restore.
    """
    with open_registry(load_settings(home=home)) as registry:
        [record] = registry.list_records()
        if not take_back:
            return {"3f9a": record.id[:8]}
        return {"3f9a": record.id[:8], "5c1e": registry.invalidate([record.id], "an example").id}


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(r"^  - (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    outside = re.findall(
        r'^    "(\S+)": "(\S+)",$', (ROOT / "docs" / "outside_pages.py").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert {*(page.removeprefix("docs/") for page in PAGES), *(page for _, page in outside)} == set(listed)
    assert {path.name for path in (ROOT / "docs").glob("*.md")} == {Path(page).name for page in PAGES}
    assert [document for document, _ in outside if not (ROOT / document).is_file()] == []


def test_the_page_on_pipelines_shows_what_the_pipelines_do() -> None:
    done = (ROOT / "docs" / "pipelines" / "gitlab-ci.yml").read_text(encoding="utf-8")
    lines = {" ".join(words) for words in commands("docs/pipeline.md") if words[0] != "diff"}
    text = " ".join(done.split())
    assert [line for line in sorted(lines) if f"{PROGRAM} {line}" not in text] == []
