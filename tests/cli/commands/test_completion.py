from __future__ import annotations

import subprocess

import pytest

from tests.cli.program import spawn


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts(mvc, shell: str) -> None:
    assert "_MVC_COMPLETE" in mvc("completion", shell).out


def test_the_bash_script_is_valid(mvc) -> None:
    script = mvc("completion", "bash").out
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def words(mvc, line: str) -> list[str]:
    env = {
        "_MVC_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split()) - (not line.endswith(" "))),
    }
    done = spawn(cwd=mvc.folder, env=env)
    assert done.stderr == ""
    return [entry.partition(",")[2] for entry in done.stdout.split()]


def test_completes_commands_revisions_and_targets(mvc) -> None:
    mvc.commit(1)
    mvc("tag", "v1")
    mvc("deploy", "HEAD", "prod")
    assert words(mvc, "mvc dep") == ["deploy", "deployments"]
    assert words(mvc, "mvc show ") == ["HEAD", "main", "v1"]
    assert words(mvc, "mvc log --target p") == ["prod"]


def test_offers_nothing_outside_a_repository(mvc, tmp_path) -> None:
    mvc.folder = tmp_path
    assert words(mvc, "mvc show ") == []
