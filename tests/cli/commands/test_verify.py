"""What the command line says of signatures, as it stands on the page."""

from __future__ import annotations

import pytest

from tests.cli.program import Mvc
from tests.signing import People, people

__all__ = ["people"]


@pytest.fixture
def three(mvc: Mvc, people: People) -> list[str]:
    """Versions that Ada deployed, all signed."""
    ids = []
    for value in range(3):
        mvc.write(value)
        done = mvc("commit", "model.safetensors", "-m", f"v{value}", "--deploy", "prod", "--json")
        ids.append(done.json["commit"]["id"])
    return ids


def test_everything_is_vouched_for(mvc: Mvc, three: list[str]) -> None:
    done = mvc("verify", "--target", "prod")
    assert [line.split()[1:] for line in done.out.splitlines()] == [
        ["target", "commit", "state", "signed", "by"],
        ["prod", three[0][:10], "ada@example.com"],
        ["prod", three[1][:10], "ada@example.com"],
        ["prod", three[2][:10], "live", "ada@example.com"],
    ]
    assert done.err == "3 of 3 deployments have a trusted signature\n"
    said = mvc("verify", "HEAD", three[0]).out.splitlines()
    assert said[1].startswith(f"{three[0][:10]} signed by ada@example.com (ssh-ed25519 SHA256:")


def test_what_is_not_signed_is_named(mvc: Mvc, three: list[str]) -> None:
    mvc("deploy", three[0], "prod", "--no-sign")
    mvc("rollback", "prod", "--sign")
    mvc("deploy", three[2], "prod", "--retract", "--no-sign")
    done = mvc("verify", code=1)
    assert done.err == "3 of 5 deployments have a trusted signature\n"
    rows = mvc("verify", "--json", code=1).json["deployments"]
    assert [row["problems"] for row in rows if row["problems"]] == [
        ["unsigned"],
        ["its retraction is unsigned"],
    ]
    assert rows[0]["signature"]["trust"] == "good"
    assert rows[3]["signature"] == {"trust": "unsigned", "signer": "", "key": ""}
    assert mvc("verify", "--since", "1 day ago", "--json", code=1).json["deployments"] == rows
    assert mvc("verify", "--since", "2100-01-01").out == ""
    mvc.write(9)
    mvc("commit", "-a", "-m", "plain", "--no-sign")
    assert "unsigned" in mvc("verify", "HEAD", code=1).out
    (version,) = mvc("verify", "HEAD", "--json", code=1).json["versions"]
    assert version["signature"]["trust"] == "unsigned"


def test_other_commands_say_who_vouches(mvc: Mvc, three: list[str], people: People) -> None:
    signed = "by ada@example.com (ssh-ed25519 SHA256:"
    assert f"signed   {signed}" in mvc("live", "prod").out
    assert f"Signed:   {signed}" in mvc("show").out
    assert "Signed" not in mvc("log").out
    (live,) = mvc("live", "prod", "--json").json["live"]
    assert live["signature"]["signer"] == "ada@example.com"
    mvc.write(7)
    assert mvc("commit", "-a", "-m", "x").out.rstrip().endswith(", signed")
    people.revoke("ada")
    assert "signed   by ada@example.com, with a revoked key" in mvc("live", "prod").out
    assert "with a revoked key" in mvc("verify", code=1).out


def test_a_name_in_a_list_cannot_steer_the_terminal(
    mvc: Mvc, three: list[str], people: People
) -> None:
    kind, key, *_ = people.public("ada").split()
    people.allowed.write_text(f"ada\x1b[2J@example.com {kind} {key}\n")
    for command in ("live", "show", "verify"):
        done = mvc(command, *(["prod"] if command == "live" else []), code=None)
        assert "\x1b" not in done.out + done.err


def test_who_signs_nothing_sees_nothing_of_it(mvc: Mvc, people: People) -> None:
    for name in ("allowed_signers", "commits", "deployments", "key"):
        people.set(name, "false" if name in {"commits", "deployments"} else "")
    mvc.commit(1.0)
    mvc("deploy", "HEAD", "prod")
    for command in (["live", "prod"], ["show"]):
        assert "igned" not in mvc(*command).out
    assert mvc("live", "prod", "--json").json["live"][0]["signature"]["trust"] == "unsigned"
    assert "sign.allowed_signers is empty" in mvc("verify", code=3).err
    assert "sign.key is empty" in mvc("deploy", "HEAD", "prod", "--sign", code=3).err
    assert "hint: set it" in mvc("rollback", "prod", "--sign", code=3).err


def test_wrong_usage(mvc: Mvc, three: list[str]) -> None:
    assert (
        "cannot be combined with --target" in mvc("verify", "HEAD", "--target", "prod", code=2).err
    )
    assert "needs REV" in mvc("deploy", "--list", "--sign", code=2).err
    mvc("verify", "--target", "nowhere", code=3)
