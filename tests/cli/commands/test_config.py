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


def test_set_get_unset(mvc) -> None:
    mvc("config", "store.reset_interval", "50")
    assert mvc("config", "store.reset_interval").out == "50\n"
    found = mvc("config", "store.reset_interval", "--json").json
    assert found["settings"]["store.reset_interval"]["from"] == "repository"
    mvc("config", "--unset", "store.reset_interval")
    assert mvc("config", "store.reset_interval").out == "null\n"


def test_user_file(mvc, tmp_path) -> None:
    mvc("config", "--user", "user.name", "ada")
    assert (tmp_path / "home/mvc/config.yaml").read_text() == "user:\n  name: ada\n"
    mvc.commit(1)
    assert "Author:   ada" in mvc("log").out


def test_outside_a_repository(mvc, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert mvc("config", "init.branch").out == "main\n"
    assert mvc("config", "init.branch", "x", code=3).err.startswith("mvc: not a repository")


def test_refusals(mvc) -> None:
    assert "from 1 to 10000" in mvc("config", "store.reset_interval", "0", code=3).err
    assert "did you mean" in mvc("config", "store.reset", code=3).err
    assert "skip:2 to skip:16" in mvc("config", "store.layout", "skip:17", code=3).err
    mvc("config", "--unset", code=2)


def test_refusals_name_key_and_place(mvc, monkeypatch) -> None:
    assert "mvc has no setting nope" in mvc("config", "nope", code=3).err
    assert "mvc has no setting nope" in mvc("config", "nope", "1", code=3).err
    err = mvc("config", "store.max_chain", "abc", code=3).err
    assert "store.max_chain = abc: it must be a number" in err
    monkeypatch.setenv("MVC_STORE_MAX_CHAIN", "abc")
    assert "= abc in the environment (MVC_STORE_MAX_CHAIN): " in mvc("log", code=3).err
