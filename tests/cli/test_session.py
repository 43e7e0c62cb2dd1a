from __future__ import annotations

from pathlib import Path

from mvc.cli.session import Session
from mvc.repo.config import user_file


def test_user_file() -> None:
    assert user_file({"XDG_CONFIG_HOME": "/x"}) == Path("/x/mvc/config.yaml")
    home = Path.home() / ".config/mvc/config.yaml"
    assert user_file({}) == home
    assert user_file({"XDG_CONFIG_HOME": "relative"}) == home


def test_names_are_relative_to_the_working_folder(mvc, monkeypatch) -> None:
    (mvc.folder / "sub").mkdir()
    monkeypatch.chdir(mvc.folder / "sub")
    session = Session()
    try:
        assert session.names(["a.pt", "../b.pt", "..", str(mvc.folder / "c.pt")]) == [
            "sub/a.pt",
            "b.pt",
            ".",
            "c.pt",
        ]
    finally:
        session.close()
