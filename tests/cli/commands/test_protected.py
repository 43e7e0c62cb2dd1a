from __future__ import annotations

from tests.cli.program import Mvc


def test_a_protected_target(mvc: Mvc) -> None:
    mvc.commit(1.0)
    mvc("config", "deploy.protect", "prod")
    failed = mvc("deploy", "HEAD", "prod", code=3)
    assert "prod is protected (deploy.protect)" in failed.err and "--anyway" in failed.err
    assert mvc("deploy", "HEAD", "prod", "--json", code=3).json["kind"] == "target-protected"
    mvc("deploy", "HEAD", "prod", "--anyway")
    mvc.commit(2.0)
    mvc("deploy", "HEAD", "prod", "--anyway")
    mvc("rollback", "prod", code=3)
    mvc("rollback", "prod", "--anyway")
    mvc("deploy", "HEAD", "prod", "--retract", code=3)
    mvc("deploy", "HEAD", "prod", "--retract", "--anyway")
    mvc("import", "model.safetensors", "--deploy", "prod", code=None)
    assert len(mvc("deploy", "--list", "prod", "--json").json["deployments"]) == 3
