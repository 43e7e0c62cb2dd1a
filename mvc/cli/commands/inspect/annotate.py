"""``mvc annotate`` adds metrics, params or a note to an existing version.

For example, record the result of a later evaluation. The version and its id do not change. log,
show, live and report use the newest value of each metric and param. Without a metric, param or
note, mvc lists the annotations of REV. 'mvc undo' reverts an annotation.
"""

from __future__ import annotations

from mvc.cli.commits import note_line
from mvc.cli.verb import CommandOptions, Session, argument, option, verb


class _AnnotateOptions(CommandOptions, frozen=True, kw_only=True):
    rev: str = argument("REV")
    metrics: dict[str, float] = option("K=V", "Record a number (repeatable).", "--metric")
    params: dict[str, str] = option("K=V", "Record a text (repeatable).", "--param")
    note: str = option("TEXT", "Record a note.", "-m", "--note", default="")


@verb("mvc annotate HEAD --metric auc=0.91 --note 'nightly evaluation'", _AnnotateOptions)
def command(session: Session, args: _AnnotateOptions) -> None:
    commit = session.repo.find(args.rev)
    annotations, adds = session.repo.annotations(commit), args.metrics or args.params or args.note
    if adds:
        annotations = (
            session.repo.annotate(commit, metrics=args.metrics, params=args.params, note=args.note),
        )
    if session.answered("mvc.annotate/1", {"commit": commit, "annotations": annotations}):
        return
    if adds:
        session.note(f"Annotated {commit.short}")
    else:
        session.lines(note_line(annotation) for annotation in annotations)
