"""What the site has otherwise than the repository: a hook of mkdocs (``mkdocs.yml``).

Pages are written for the repository. The site also has pages from outside of ``docs``, with
their links turned, and a page of the public names.
"""

from __future__ import annotations

import os
import posixpath
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # for tests; mkdocs is a program of its own

import mvc  # noqa: E402
import mvc.recipes  # noqa: E402
from mvc.cli.catalog import SECTIONS  # noqa: E402
from tests.documents.pages import anchor, outside_of_code  # noqa: E402

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

MOVED = {
    "README.md": "index.md",
    "docs/README.md": "pages.md",
    "CHANGELOG.md": "changelog.md",
    ".github/CONTRIBUTING.md": "contributing.md",
    ".github/SECURITY.md": "security.md",
}
"""Pages that have another place on the site, by their path in the repository."""

API = "api.md"
_IN_EXAMPLES = sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / "examples").rglob("*")
    if path.suffix in {".md", ".png", ".svg"}
)
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(\s*([^)\s]+)\s*\)")
_CELL_CODE = re.compile(r"(?<!`)`[^`\n]+`(?!`)")
_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?^```\n)", re.M | re.S)
_COMMENT = re.compile(r"^<!--.*?-->\n", re.M | re.S)
_NAMESPACES = ("mvc.api.storage.Storage", "mvc.api.remotes.Remotes")


def place(path: str) -> str | None:
    """Where a file of the repository is on the site; None if it is not there."""
    if path in MOVED:
        return MOVED[path]
    if path.startswith("docs/") and (ROOT / path).is_file():
        return path.removeprefix("docs/")
    return path if path in _IN_EXAMPLES else None


def source(place: str) -> str:
    """The file of the repository that is at this place."""
    moved = {there: path for path, there in MOVED.items()}
    return moved.get(place) or (place if place.startswith("examples/") else f"docs/{place}")


def turned(text: str, page: str, repository: str) -> str:
    """A page at a place of the site, its links leading to places and into the repository.

    ``repository``: its address. Without one, the text of a link to a source file stays.
    """
    folder = posixpath.dirname(source(page))

    def link(found: re.Match[str]) -> str:
        mark, label, target = found.groups()
        if re.match(r"[a-z]+:|#", target):
            return found[0]
        path, hash_, anchor = target.partition("#")
        path = posixpath.normpath(posixpath.join(folder, path))
        there = place(path)
        if there is None:
            return f"[{label}]({repository}/blob/main/{path})" if repository else label
        relative = posixpath.relpath(there, posixpath.dirname(page) or ".")
        return f"{mark}[{label}]({relative}{hash_}{anchor})"

    return outside_of_code(text, lambda prose: _LINK.sub(link, prose))


def with_plain_pipes(text: str) -> str:
    """In code of a table's cell a pipe is written with a backslash, which the site would show."""

    def row(line: str) -> str:
        plain = _CELL_CODE.sub(lambda code: code[0].replace(r"\|", "|"), line)
        return plain if line.startswith("|") else line

    return outside_of_code(text, lambda prose: "\n".join(map(row, prose.split("\n"))))


def without_comments(text: str) -> str:
    """Comments say to the tests how a page is run, and where its figures come from."""
    return outside_of_code(text, lambda prose: _COMMENT.sub("", prose))


def with_apart_blocks(text: str) -> str:
    """Blocks of code between blank lines and with a language alone, as mkdocs requires."""
    return _FENCE.sub(r"\n```\1\n\2\n", text)


def api() -> str:
    """A page of every public name, for mkdocstrings."""
    names = [f"mvc.{name}" for name in mvc.__all__ if name != "__version__"]
    recipes = [f"mvc.recipes.{name}" for name in mvc.recipes.__all__]
    parts = [f"::: {name}" for name in (*names, *recipes, *_NAMESPACES, "mvc.errors")]
    intro = (
        "Every public name, from its docstring. [Python](python.md) shows how they are used;\n"
        "`repo.storage` and `repo.remotes` are the last classes of this page."
    )
    return "\n\n".join(["# Public names", intro, *parts, ""])


# -- the hook ------------------------------------------------------------------------------------


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Anchors as in the repository; the commands and the examples in the navigation."""
    config.repo_url = os.environ.get("MVC_REPOSITORY_URL", "")
    config.mdx_configs["toc"]["slugify"] = lambda text, _separator: anchor(text)
    assert config.nav is not None
    tabs: dict[str, list[Any]] = {title: tab for each in config.nav for title, tab in each.items()}
    for section, names in SECTIONS.items():
        tabs["Commands"].append({section: [{name: f"commands/{name}.md"} for name in names]})
    tabs["Examples"] += [path for path in _IN_EXAMPLES if path.endswith(".md")]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages from outside of ``docs``, and that of the public names."""
    from mkdocs.structure.files import File

    files.remove(files.src_uris["README.md"])
    outside = {**MOVED, **{path: path for path in _IN_EXAMPLES}}
    for path, there in outside.items():
        files.append(File.generated(config, there, abs_src_path=str(ROOT / path)))
    files.append(File.generated(config, API, content=api()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page as the site has it."""
    uri = page.file.src_uri
    if uri == API:
        return markdown
    text = with_apart_blocks(with_plain_pipes(without_comments(markdown)))
    return turned(text, uri, config.repo_url or "")
