from __future__ import annotations


def test_deploy_and_retract(mvc) -> None:
    first, second = mvc.commit(1), mvc.commit(2)
    said = mvc("deploy", first, "prod", "--at", "2026-11-01T10:00Z").out
    assert said == f"Deployed {first[:10]} to prod at 2026-11-01T10:00:00+00:00\n"
    mvc("deploy", "HEAD", "prod", "--at", "2026-11-02T10:00Z")
    assert mvc("checkout", "--target", "prod", "-o", "a", "--json").json["commit"] == second
    assert "Retracted" in mvc("deploy", "HEAD", "prod", "--retract").out
    assert mvc("checkout", "--target", "prod", "-o", "b", "--json").json["commit"] == first
    listed = mvc("deployments", "prod").out.splitlines()
    assert listed[1].split()[3] == "retracted"
    assert listed[2].split()[3] == "live"


def test_a_record_made_late_takes_nothing_over(mvc) -> None:
    first, second = mvc.commit(1), mvc.commit(2)
    mvc("deploy", second, "prod", "--at", "2026-02-10")
    mvc("deploy", first, "prod", "--at", "2026-02-05")
    mvc("deploy", first, "prod", "--at", "2200-01-01")
    assert mvc("checkout", "--target", "prod", "-o", "a", "--json").json["commit"] == second
    assert mvc("rev-parse", "--at", "now").out.strip() == second
    assert [d["live"] for d in mvc("deployments", "--json").json["deployments"]] == [
        False,
        True,
        False,
    ]


def test_unlikely_times_are_warned_about(mvc) -> None:
    mvc.write(1)
    mvc("commit", "model.safetensors", "--date", "2026-03-01T12:00Z")
    assert "before 1990" in mvc("deploy", "HEAD", "prod", "--at", "1989-12-31").err
    said = mvc("deploy", "HEAD", "prod", "--at", "2026-03-01T11:59Z", "--json")
    assert "made after that, at 2026-03-01T12:00:00" in said.err
    assert said.json["schema"] == "mvc.deploy/1"
    assert mvc("deploy", "HEAD", "prod", "--at", "2026-03-01T12:00Z").err == ""
    assert mvc("deploy", "HEAD", "prod").err == ""


def test_json(mvc) -> None:
    id_ = mvc.commit(1)
    found = mvc("deploy", "HEAD", "edge/1", "--at", "1700000000", "--json").json
    assert found["schema"] == "mvc.deploy/1"
    deployment = found["deployment"]
    assert deployment["commit"] == id_
    assert deployment["time_ns"] == 1_700_000_000 * 10**9
    assert deployment["time"] == "2023-11-14T22:13:20+00:00"


def test_refusals(mvc) -> None:
    mvc.commit(1)
    assert "target" in mvc("deploy", "HEAD", "two words", code=3).err
    assert mvc("deploy", "HEAD", "prod", "--at", "soon", code=3).err.startswith(
        "mvc: this is not a time"
    )
    assert mvc("deploy", "HEAD", "prod", "--retract", code=3).err.startswith("mvc: ")
