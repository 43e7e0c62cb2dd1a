from __future__ import annotations

import re


def test_the_advice_names_the_moment_where_there_are_two(mvc) -> None:
    mvc.write(1)
    mvc("commit", "model.safetensors", "--deploy", "prod")
    mvc("deploy", "HEAD", "prod")
    advice = next(line for line in mvc("undo", 1).err.splitlines() if "--retract" in line)
    mvc(*advice.partition("'mvc ")[2].partition("'")[0].split())
    found = mvc("deploy", "--list", "--json").json["deployments"]
    assert [(d["sequence"], d["retracted"]) for d in found] == [(2, False), (1, True)]


def test_the_advice_after_a_rollback_names_what_it_left(mvc) -> None:
    made = []
    for value in (1, 2, 3):
        made.append(mvc.commit(value))
        mvc("deploy", "HEAD", "prod")
    mvc("rollback", "prod")
    told = mvc("undo", code=None).err
    found = re.search("'mvc (deploy [^']*)' deploys the version that was live before", told)
    assert found is not None, told
    mvc(*found[1].split())
    assert mvc("live", "prod", "--json").json["live"][0]["commit"] == made[2]


def test_the_advice_names_no_version_that_was_not_live(mvc) -> None:
    for value in (1, 2):
        mvc.commit(value)
        mvc("deploy", "HEAD", "prod")
    mvc("deploy", "HEAD~1", "prod", "--retract")
    told = mvc("undo", 4, code=None).err
    assert "--retract" in told and "live before" not in told
