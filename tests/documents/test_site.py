"""What the site has otherwise than the pages; the site itself is built in CI."""

from __future__ import annotations

import pydoc
import re
from pathlib import Path

import pytest

from tests.documents import site

ROOT = Path(site.__file__).parents[2]


@pytest.mark.parametrize(
    ("page", "text", "there"),
    [
        ("limits.md", "[a](format.md#dtypes)", "[a](format.md#dtypes)"),
        ("index.md", "[a](docs/limits.md#caps), ![b](docs/images/terminal.svg)",
         "[a](limits.md#caps), ![b](images/terminal.svg)"),
        ("pages.md", "[a](../README.md) [b](guides/fleet.md)",
         "[a](index.md) [b](guides/fleet.md)"),
        ("contributing.md", "[a](../docs/guides/security.md)", "[a](guides/security.md)"),
        ("guides/fleet.md", "[a](../../examples/README.md)", "[a](../examples/README.md)"),
        ("examples/README.md", "[a](reproduce/README.md) [b](../docs/lc.md)",
         "[a](reproduce/README.md) [b](../lc.md)"),
        ("limits.md", "[a](https://example.org/x) [b](#caps)",
         "[a](https://example.org/x) [b](#caps)"),
        ("distributed.md", "[`a`](../examples/train_distributed.py)",
         "[`a`](https://host/us/mvc/blob/main/examples/train_distributed.py)"),
        ("limits.md", "```\n[a](../README.md)\n```\n", "```\n[a](../README.md)\n```\n"),
    ],
)  # fmt: skip
def test_links_lead_to_places_of_the_site(page: str, text: str, there: str) -> None:
    assert site.turned(text, page, "https://host/us/mvc") == there


def test_without_a_known_address_the_text_of_a_link_stays() -> None:
    assert site.turned("see [`a`](../pyproject.toml)", "limits.md", "") == "see `a`"


def test_a_pipe_in_the_code_of_a_cell_is_one() -> None:
    text = "| `a\\|b` | c\\|d |\n\n`x\\|y`\n\n```\n| `a\\|b` |\n```\n"
    assert site.with_plain_pipes(text) == text.replace("`a\\|b` | c", "`a|b` | c")


def test_every_public_name_is_in_the_page_of_names() -> None:
    import mvc

    listed = re.findall("^::: (.*)", site.api(), re.M)
    assert {f"mvc.{name}" for name in mvc.__all__ if name != "__version__"} <= set(listed)
    assert [name for name in listed if pydoc.locate(name) is None] == []


def test_blocks_are_between_blank_lines_and_have_a_language_alone() -> None:
    text = "- a\n```hex frame\n00\n```\nis `0`\n```\n$ b\n```\n"
    assert site.with_apart_blocks(text) == ("- a\n\n```hex\n00\n```\n\nis `0`\n\n```\n$ b\n```\n\n")
