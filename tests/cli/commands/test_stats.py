from __future__ import annotations


def test_table_and_json(mvc) -> None:
    for value in range(3):
        mvc.commit(value)
    mvc("deploy", "HEAD", "prod")
    out = mvc("stats").out
    assert "Versions:        3 (1 reset point)" in out
    assert "Deployments:     1 on 1 target" in out
    found = mvc("stats", "--json").json
    assert found["schema"] == "mvc.stats/1"
    assert found["raw_bytes"] == 3 * (mvc.folder / "model.safetensors").stat().st_size
    assert found["stored_bytes"] == sum(found["bytes"].values())


def test_empty(mvc) -> None:
    assert "Versions:        0" in mvc("stats").out


def test_empty_shows_no_shares_or_times(mvc) -> None:
    out = mvc("stats").out
    assert " 0 %" not in out and " us" not in out and "(0 %)" not in out
    mvc.commit(1)
    stored = next(line for line in mvc("stats").out.splitlines() if line.startswith("Stored:"))
    assert "%" not in stored  # the repository is larger than its one tiny file


def test_what_was_chosen_and_its_price(mvc) -> None:
    for value in range(3):
        mvc.commit(value)
    assert "Stored as:       " in mvc("stats").out
    assert "Price:" not in mvc("stats").out
    assert mvc("stats", "--json").json["price"] is None
    mvc("config", "store.storage_weight", "1000")
    assert "(a gigabyte is worth 1000.0 s)" in mvc("stats").out
    found = mvc("stats", "--json").json
    assert sum(found["kinds"].values()) == 3
    listed = mvc("stats", "--versions", "--json").json["versions"]
    assert abs(sum(each["price"] for each in listed) - found["price"]) < 1e-3
    heading, *rows = mvc("stats", "--versions").out.splitlines()
    assert heading.split() == ["version", "stored", "bytes", "recovery", "price", "message"]
    assert [row.split()[1] for row in rows] == [each["kind"] for each in listed]
    out = mvc("repack", "-n").out
    assert "Plan: storage-weight 1000\n" in out
    assert "price   " in out
