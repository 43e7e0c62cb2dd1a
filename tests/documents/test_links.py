from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tests.documents import pages
from tests.documents.pages import PAGES, ROOT

_LINK = re.compile(r"\[[^\]]*\]\(\s*([^)\s]+)\s*\)")


@cache
def _prose(page: Path) -> str:
    return pages.prose(page.read_text(encoding="utf-8"))


@cache
def _anchors(page: Path) -> set[str]:
    """The anchors of the page's headings, as GitHub makes them."""
    anchors: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", _prose(page), re.M):
        anchor = pages.anchor(heading)
        numbered = (f"{anchor}-{n}" for n in range(1, 100))
        anchors.add(
            anchor if anchor not in anchors else next(a for a in numbered if a not in anchors)
        )
    return anchors


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    lost = []
    for link in _LINK.findall(_prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            lost.append(link)
    assert not lost


def test_every_page_is_linked() -> None:
    linked = {ROOT / "README.md"} | {
        (page.parent / link.partition("#")[0]).resolve()
        for page in PAGES
        for link in _LINK.findall(_prose(page))
        if not re.match(r"[a-z]+:|#", link)
    }
    assert not [str(page.relative_to(ROOT)) for page in PAGES if page not in linked]


def test_tables_have_as_many_cells_as_their_heads() -> None:
    broken = []
    for page in PAGES:
        for table in re.findall(r"(?:^\|.*\n)+", _prose(page) + "\n", re.M):
            head, *rows = table.splitlines()
            cells = [len(re.findall(r"(?<!\\)\|", line)) for line in (head, *rows)]
            if not rows or not re.fullmatch(r"(\| *:?-+:? *)+\|", rows[0]) or len(set(cells)) > 1:
                broken.append(f"{page.name}: {head}")
    assert not broken


@pytest.mark.parametrize("page", ["docs/architecture.md", "docs/limits.md"])
def test_modules_that_a_page_names_exist(page: str) -> None:
    modules = [str(path.relative_to(ROOT)) for path in (ROOT / "mvc").rglob("*.py")]
    named = set(re.findall(r"`([a-z_/]+\.py)`", (ROOT / page).read_text()))
    assert {n for n in named if not any(f"/{m}".endswith(f"/{n}") for m in modules)} == set()
