from __future__ import annotations

from mvc.repo.config import KEYS


def test_lists_every_key_with_its_origin(mvc) -> None:
    out = mvc("config").out
    for key in KEYS:
        assert key in out
    assert mvc("config", "--json").json["settings"]["store.layout"] == {
        "value": "skip:4",
        "from": "default",
    }


def test_outside_a_repository(mvc, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert mvc("config", "init.branch").out == "main\n"
    assert mvc("config", "init.branch", "x", code=3).err.startswith("mvc: not a repository")


def test_refusals_name_key_and_place(mvc, monkeypatch) -> None:
    assert "mvc has no setting nope" in mvc("config", "nope", code=3).err
    assert "mvc has no setting nope" in mvc("config", "nope", "1", code=3).err
    err = mvc("config", "store.max_chain", "abc", code=3).err
    assert "store.max_chain = abc: it must be a number" in err
    monkeypatch.setenv("MVC_STORE_MAX_CHAIN", "abc")
    assert "= abc in the environment (MVC_STORE_MAX_CHAIN): " in mvc("log", code=3).err
