"""Documents outside this folder become pages of the site; links to them lead there, on the site and in the repository."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "BENCHMARKS.md": "benchmarks.md",
    "CHANGELOG.md": "changelog.md",
    "infra/README.md": "servers.md",
}
"""Where a document of the repository is found on the site."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the documents that are not here."""
    for document, page in PAGES.items():
        if files.get_file_from_path(page) is None:
            files.append(File.generated(config, page, abs_src_path=str(ROOT / document)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - mkdocs names them
    """Let links to other documents lead to their pages; what is no page of the site loses its link."""
    document = next((name for name, uri in PAGES.items() if uri == page.file.src_uri and uri != "index.md"), None)
    folder = (ROOT / document).parent if document else ROOT / "docs" / Path(page.file.src_uri).parent

    def led(found: re.Match[str]) -> str:
        text, target, anchor = found.groups()
        path = (folder / target).resolve().relative_to(ROOT).as_posix()
        uri = PAGES.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
        return f"[{text}]({uri}{anchor or ''})" if uri else text

    return re.sub(r"\[([^\]\n]+)\]\((?!\w+:|#)([^)#\n]+)(#[^)\n]*)?\)", led, markdown)
