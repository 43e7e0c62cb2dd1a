from __future__ import annotations

from pathlib import Path

import pytest

from mvc.api.repository import Repository
from mvc.errors import InvalidConfig, InvalidName, WrongUsage
from mvc.io.files import FileSystem
from mvc.server.tokens import Tokens
from mvc.testing.process import FixedClock

_DAY_NS = 86_400 * 1_000_000_000


def tokens(folder: Path, clock: FixedClock | None = None) -> Tokens:
    return Tokens(FileSystem(), folder, clock)


def test_a_token_is_known_by_its_hash_alone(tmp_path: Path) -> None:
    text = tokens(tmp_path).add("anna", ["read", "push:heads/*"])
    file = tmp_path / ".mvc-tokens"
    assert text not in file.read_text() and text.removeprefix("mvc_") not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    held = tokens(tmp_path).holder(text)
    assert held is not None and (held.name, held.scopes) == ("anna", ("read", "push:heads/*"))
    assert len(text) == len("mvc_") + 43


def test_nobody_else_is_its_holder(tmp_path: Path) -> None:
    known = tokens(tmp_path)
    assert known.holder("mvc_" + "a" * 43) is None
    text = known.add("anna", ["read"])
    assert known.holder(text[:-1]) is None
    assert known.holder("") is None and known.holder("\ud800") is None


def test_a_token_expires(tmp_path: Path) -> None:
    clock = FixedClock()
    known = tokens(tmp_path, clock)
    held = known.holder(known.add("anna", ["read"], days=2))
    assert held is not None
    clock.advance(2 * _DAY_NS - 1_000_000_000)
    assert not known.has_expired(held)
    clock.advance(1_000_000_000)
    assert known.has_expired(held)


def test_a_removed_token_is_unknown_to_a_server_that_runs(tmp_path: Path) -> None:
    server, owner = tokens(tmp_path), tokens(tmp_path)
    text = owner.add("anna", ["read"])
    assert server.holder(text) is not None
    owner.remove("anna")
    assert server.holder(text) is None
    with pytest.raises(WrongUsage, match="no token 'anna'"):
        owner.remove("anna")


def test_a_name_is_there_once(tmp_path: Path) -> None:
    known = tokens(tmp_path)
    known.add("anna", ["read"])
    with pytest.raises(WrongUsage, match="already"):
        known.add("anna", ["admin"])
    with pytest.raises(InvalidName):
        known.add("anna\nadmin", ["read"])
    assert [each.name for each in known.all()] == ["anna"]


def test_the_tokens_of_a_repository_lie_in_its_own_folder(tmp_path: Path) -> None:
    Repository.init(tmp_path).close()
    tokens(tmp_path).add("anna", ["read"])
    assert (tmp_path / ".mvc/tokens").exists() and not (tmp_path / ".mvc-tokens").exists()


@pytest.mark.parametrize("mode", [0o644, 0o620, 0o606])
def test_a_file_that_others_reach_is_not_believed(tmp_path: Path, mode: int) -> None:
    tokens(tmp_path).add("anna", ["read"])
    (tmp_path / ".mvc-tokens").chmod(mode)
    with pytest.raises(InvalidConfig, match="other users can read or change"):
        tokens(tmp_path).all()


@pytest.mark.parametrize("text", ["{", "{}", '[{"name": "a"}]', "[1]"])
def test_a_file_that_is_no_list_of_tokens_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / ".mvc-tokens"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(InvalidConfig, match="not a valid token file"):
        tokens(tmp_path).all()
