from __future__ import annotations


def test_the_advice_names_the_moment_where_there_are_two(mvc) -> None:
    mvc.write(1)
    mvc("commit", "model.safetensors", "--deploy", "prod")
    mvc("deploy", "HEAD", "prod")
    advice = next(line for line in mvc("undo", 1).err.splitlines() if "--retract" in line)
    mvc(*advice.partition("'mvc ")[2].partition("'")[0].split())
    found = mvc("deploy", "--list", "--json").json["deployments"]
    assert [(d["sequence"], d["retracted"]) for d in found] == [(2, False), (1, True)]
