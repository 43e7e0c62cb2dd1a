from __future__ import annotations


def test_what_was_live_before_is_live_again(mvc) -> None:
    ids = [mvc.commit(value) for value in (1, 2, 3)]
    for id_ in ids:
        mvc("deploy", id_, "prod")
    said = mvc("rollback", "prod")
    assert said.out.startswith(f"Rolled back prod to {ids[1][:10]} (value 2) at 20")
    assert said.out.count("\n") == 1 and said.err == ""
    assert mvc("rev-parse", "--at", "now").out.strip() == ids[1]
    assert mvc("rev-parse", "HEAD").out.strip() == ids[2]
    assert mvc("rollback", "prod").out.startswith(f"Rolled back prod to {ids[2][:10]} ")


def test_to_a_version_that_was_live(mvc) -> None:
    ids = [mvc.commit(value) for value in (1, 2, 3)]
    for id_ in ids[:2]:
        mvc("deploy", id_, "prod")
    found = mvc("rollback", "prod", "--to", "HEAD~2", "--json").json
    assert found["schema"] == "mvc.rollback/1" and found["deployment"]["commit"] == ids[0]
    said = mvc("rollback", "prod", "--to", ids[2], code=3).err
    assert f"{ids[2][:10]} was never live on prod" in said and "mvc deploy" in said
    assert "is live on prod already" in mvc("rollback", "prod", "--to", ids[0], code=3).err


def test_nothing_to_go_back_to(mvc) -> None:
    id_ = mvc.commit(1)
    mvc("deploy", id_, "prod")
    mvc("deploy", id_, "prod")
    assert f"nothing but {id_[:10]} was live on prod" in mvc("rollback", "prod", code=3).err
    assert "did you mean" not in mvc("rollback", "prd", code=3).err
    assert "there is: prod" in mvc("rollback", "prd", code=3).err
    mvc("deploy", id_, "edge", "--at", "2200-01-01")
    mvc("rollback", "edge", code=3)


def test_undo_after_a_wrong_deployment_names_it(mvc) -> None:
    first, second = mvc.commit(1), mvc.commit(2)
    mvc("deploy", first, "prod")
    mvc("deploy", second, "prod")
    said = mvc("undo", code=3).err.splitlines()
    assert said[0] == "mvc: operation 4 (deploy) recorded a deployment, which is not undone"
    assert "'mvc rollback prod' deploys what was live before" in said[1]
    assert "'mvc undo 2' takes back the commit before it" in said[1]
    assert mvc("rev-parse", "HEAD").out.strip() == second
    mvc("rollback", "prod")
    assert mvc("rev-parse", "--at", "now").out.strip() == first
