"""``mvc merge``.

If only one side changed a tensor since the common ancestor, the merge has this side's tensor. If
both sides changed a tensor, or a file without tensors, this is a conflict. Strategies: ours and
theirs take one side; mean averages tensors; sum adds X times each change to the ancestor's tensor.
If conflicts remain, mvc lists them and writes nothing. PATTERN selects tensors (NAME or PATH:NAME)
or files. The last matching pattern counts. If HEAD is an ancestor of REV, the branch moves forward.
"""

from __future__ import annotations

from mvc.api import Conflict
from mvc.cli.restored import print_restored
from mvc.cli.verb import CommandOptions, Session, argument, option, verb
from mvc.text import count, number, percent, printable

_COLUMNS = "file, tensor, ours>, L2>, theirs>, L2>"


class _MergeOptions(CommandOptions, frozen=True, kw_only=True):
    rev: str = argument("REV")
    strategy: tuple[str, ...] = option(
        "[PATTERN=]HOW", "Resolve conflicts by mean, ours, theirs or sum.", "-s"
    )
    scale: float = option("X", "The factor X of sum.", default=1.0)


@verb("mvc merge experiment --strategy mean --strategy 'lm_head.*=ours'", _MergeOptions)
def command(session: Session, args: _MergeOptions) -> int:
    done = session.run(
        "merging", session.repo.merge, args.rev, strategy=args.strategy, scale=args.scale
    )
    for rule in done.unused:
        session.warn(f"{rule} matches no conflict")
    branch, rev = printable(done.branch or "HEAD"), printable(args.rev)
    if session.answered("mvc.merge/1", done):
        return int(bool(done.conflicts))
    session.table(_COLUMNS, map(_row, done.conflicts))
    if done.conflicts:
        session.line(f"{count(len(done.conflicts), 'conflict')}: nothing is merged")
        session.note(
            "hint: --strategy ours or theirs resolves any conflict; mean or sum resolves "
            "only conflicts of floats; PATTERN=HOW resolves only matching conflicts"
        )
    elif done.restored is None or done.new is None:
        session.note(f"{branch} is up to date with {rev}")
    else:
        action = "Fast-forward" if done.base == done.old else f"Merged {rev} into"
        session.note(
            f"{action} {branch}: {done.old.short if done.old else 'nothing'}..{done.new.short}"
        )
        print_restored(session, done.restored)
    return int(bool(done.conflicts))


def _row(conflict: Conflict) -> tuple[str, ...]:
    """The cells of a conflict: path, tensor, and for each side the change and its L2 norm.

    The change is shown as the share of changed elements, or as a word such as ``added``.
    """
    ours, theirs = (
        (
            row.kind if row.changed_share is None else percent(row.changed_share, 1),
            "" if row.l2 is None else number(row.l2),
        )
        for row in (conflict.ours, conflict.theirs)
    )
    return printable(conflict.path), printable(conflict.key or ""), *ours, *theirs
