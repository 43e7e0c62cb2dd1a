"""``mvc completion``."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from mvc.cli.program import program, verb
from mvc.cli.session import Session


@verb(
    "completion", "mvc completion bash > ~/.local/share/bash-completion/completions/mvc", json=False
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(session: Session, shell: str) -> None:
    """Print the completion script of a shell.

    It completes commands, options, revisions and targets.
    """
    found = get_completion_class(shell)
    assert found is not None  # the choice above names click's own three
    session.out.line(found(program, {}, "mvc", "_MVC_COMPLETE").source().rstrip())
