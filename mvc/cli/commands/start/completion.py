"""``mvc completion``.

The script completes commands, options, revisions, targets, paths, tensors, settings and presets.
"""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from mvc.cli.program import program
from mvc.cli.verb import CommandOptions, Session, argument, verb

_BASH = r"""
%(complete_func)s() {
    local IFS=$'\n' type value files=
    COMPREPLY=()
    while IFS=',' read -r type value; do
        case $type in
            plain) COMPREPLY+=("$value") ;;
            file|dir) files=$type ;;
        esac
    done < <(env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD \
        %(complete_var)s=bash_complete "$1")
    if [[ -z $files ]]; then
        for value in "${!COMPREPLY[@]}"; do
            printf -v "COMPREPLY[$value]" '%%q' "${COMPREPLY[$value]}"
        done
    elif [[ ${#COMPREPLY[@]} -gt 0 ]]; then
        compopt -o filenames
        while read -r value; do COMPREPLY+=("$value"); done < <(compgen -f -- "$2")
    elif [[ $files == dir ]]; then
        compopt -o dirnames
    else
        compopt -o default
    fi
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class _Bash(BashComplete):
    """The script for bash. Unlike the script of click, it completes values and files together."""

    source_template = _BASH


_SHELLS: dict[str, type[ShellComplete]] = {"bash": _Bash, "zsh": ZshComplete, "fish": FishComplete}


class _CompletionOptions(CommandOptions, frozen=True, kw_only=True):
    shell: str = argument(None, type=click.Choice(_SHELLS))


@verb(
    "mvc completion bash > ~/.local/share/bash-completion/completions/mvc",
    _CompletionOptions,
    json=False,
)
def command(session: Session, args: _CompletionOptions) -> None:
    session.line(_SHELLS[args.shell](program, {}, "mvc", "_MVC_COMPLETE").source().rstrip())
