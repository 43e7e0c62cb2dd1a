"""``mvc help``.

Without an argument, mvc lists the daily commands.
"""

from __future__ import annotations

import click

from mvc.cli.program import Program
from mvc.cli.topics import TOPICS, Topic
from mvc.cli.verb import CommandOptions, Session, argument, flag, verb


class _HelpOptions(CommandOptions, frozen=True, kw_only=True):
    topic: str | None = argument("[COMMAND|TOPIC]")
    every: bool = flag("List all commands and global options.", "--all", allows="")


@verb("mvc help revisions", _HelpOptions, json=False)
def command(session: Session, args: _HelpOptions) -> None:
    root = click.get_current_context().find_root()
    program = root.command
    assert isinstance(program, Program)
    formatter = root.make_formatter()
    if args.every:
        program.format_all(root, formatter)
    elif args.topic is None:
        program.format_help(root, formatter)
    elif args.topic in TOPICS:
        _format(TOPICS[args.topic], formatter)
    else:
        named = program.named(root, args.topic, *TOPICS)
        with click.Context(named, root, args.topic) as ctx:
            named.format_help(ctx, formatter)
    session.line(formatter.getvalue().rstrip("\n"))


def _format(topic: Topic, formatter: click.HelpFormatter) -> None:
    formatter.write(f"{topic.title}\n\n")
    formatter.write_dl([(form, meaning.replace("`", "")) for form, meaning in topic.forms.items()])
    for note in topic.notes:
        formatter.write_paragraph()
        formatter.write_text(note.replace("`", ""))
