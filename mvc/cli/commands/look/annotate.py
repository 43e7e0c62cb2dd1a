"""``mvc annotate``.

For what is found out later: a nightly evaluation, an approval. The version and its id stay;
'mvc undo' takes the annotation back. log, show, live and report show the last value of
each name, and 'mvc log --where' finds versions by it. Without a value, what was annotated
so far is listed.
"""

from __future__ import annotations

from mvc.cli.commits import note_line
from mvc.cli.verb import CommandOptions, Session, argument, option, verb


class _AnnotateOptions(CommandOptions, frozen=True, kw_only=True):
    rev: str = argument("REV")
    metrics: dict[str, float] = option("K=V", "A number that was measured.", "--metric")
    params: dict[str, str] = option("K=V", "A setting.", "--param")
    note: str = option("TEXT", "What there is to say.", "-m", "--note", default="")


@verb("mvc annotate HEAD --metric auc=0.91 --note 'nightly evaluation'", _AnnotateOptions)
def command(session: Session, args: _AnnotateOptions) -> None:
    commit = session.repo.find(args.rev)
    found, adds = session.repo.annotations(commit), args.metrics or args.params or args.note
    if adds:
        found = (
            session.repo.annotate(commit, metrics=args.metrics, params=args.params, note=args.note),
        )
    if session.answered("mvc.annotate/1", {"commit": commit, "annotations": found}):
        return
    if adds:
        session.note(f"Annotated {commit.short}")
    else:
        session.lines(note_line(annotation) for annotation in found)
