"""Formats commits: as text like that of ``git log``, on one line, or as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from mvc.api import Annotation, Commit, CommitResult, Deployed, Gone, LogEntry
from mvc.cli.payload import fields, stamped
from mvc.cli.session import Session
from mvc.cli.tables import shortened
from mvc.cli.transfers import note_unsent
from mvc.errors import DamagedData, MvcError, NoDeployment
from mvc.ids import CommitId
from mvc.text import (
    cell_width,
    count,
    format_age,
    format_time,
    measured,
    one_line,
    printable,
    stored_for,
)

if TYPE_CHECKING:
    from mvc.api import Checked, Relation


_LABEL = 10  # columns for labels such as "Author:"
_NAMES = 27  # most columns for the refs of a version; its targets may use as many
IsLive: TypeAlias = Callable[[Deployed], bool]


def live_now(session: Session) -> IsLive:
    """Returns a function that says whether a deployment is live now. It reads each target once."""

    @cache
    def sequence(target: str) -> int | None:
        try:
            return session.repo.live(target).deployment.sequence
        except (NoDeployment, DamagedData):  # nothing is live, or the live version is unknown
            return None

    return lambda deployed: deployed.sequence == sequence(deployed.target)


def summary(session: Session, done: CommitResult) -> str:
    """The line that reports a new version.

    ``[main 1a2b3c4d5e] nightly: 12 of 14 tensors changed, 1.02 MB stored for 3.55 MB``.
    """
    where = printable(done.branch or "detached HEAD")
    title = one_line(done.commit.message)
    facts = [_changed(done), stored_for(done.stored_bytes, done.raw_bytes)]
    if done.deployment is not None:
        target = session.paint(printable(done.deployment.target), "target")
        facts.append(f"deployed to {target} at {session.moment(done.deployment.time_ns)}")
    if done.signed:
        facts.append("signed")
    place = f"[{session.paint(where, 'branch')} {session.paint(done.id.short, 'id')}]"
    return f"{place} {f'{title}: ' if title else ''}{', '.join(facts)}"


def _changed(done: CommitResult) -> str:
    present = [p for p in done.paths if p.kind != "removed"]
    changed, total = sum(p.tensors_changed for p in present), sum(p.tensors for p in present)
    files = sum(p.kind != "unchanged" for p in done.paths)
    if not total:
        return f"{count(files, 'file')} changed"
    words = f"{changed:,} of {count(total, 'tensor')} changed"
    if changed > total:  # removed tensors count, too
        words = f"{count(changed, 'tensor')} changed or removed"
    return words if files < 2 else f"{words} in {count(files, 'file')}"


def names_of(session: Session) -> Callable[[LogEntry], str]:
    """Returns a function that formats refs and live targets: `` (HEAD -> main, tag: v1) [prod]``.

    For a version without refs and live targets, the text is empty.
    """
    branch, live = session.repo.head(if_known=True).branch, live_now(session)

    def names(entry: LogEntry) -> str:
        at_head = "HEAD" in entry.refs
        words = [
            session.paint(printable(name), "tag" if name.startswith("tag: ") else "branch")
            for name in entry.refs
            if name != "HEAD" and not (at_head and name == branch)
        ]
        if at_head:
            on = f" -> {session.paint(branch, 'branch')}" if branch in entry.refs and branch else ""
            words.insert(0, session.paint("HEAD", "head") + on)
        targets = [
            session.paint(printable(d.target), "target") for d in entry.deployments if live(d)
        ]
        lists = ((" ({})", words), (" [{}]", targets))
        return "".join(
            form.format(session.few(texts, _NAMES, ", ")) for form, texts in lists if texts
        )

    return names


def one_liner(session: Session, entry: LogEntry, names: str, prefix: int = 0) -> str:
    """The line of a version: ``1a2b3c4d5e (HEAD -> main) [prod] message``.

    The line is shortened to the width of the terminal minus ``prefix`` columns.
    """
    message = one_line(entry.commit.message)
    run = printable(entry.commit.run)
    message = f"{run}: {message}" if run and not message.startswith(f"{run}:") else message
    notes = (
        forgotten_on(entry.forgotten_ns, absent=entry.absent),
        "" if entry.dropped is None else str(entry.dropped),
    )
    suffix = "".join(session.paint(f" ({note})", "dim") for note in notes if note)
    head = f"{session.paint(session.id_text(entry.id), 'id')}{names} "
    if session.width is not None:
        used = prefix + cell_width(click.unstyle(head + suffix))
        message = shortened(message, max(session.width - used, _LABEL), "end")
    return f"{head}{message or session.paint('(no message)', 'dim')}{suffix}"


def _related(relations: Sequence[Relation]) -> str:
    """How the models differ from those of the parent version.

    For example ``fine-tuned version (2 of 320 tensors changed)``. If several models changed, each
    text begins with the path of the model.
    """
    changed = [r for r in relations if r.kind != "equal"] or relations[:1]
    if len(relations) <= 1 or changed[0].kind == "equal":
        return "".join(map(str, changed[:1]))
    return ", ".join(f"{printable(relation.path)} {relation}" for relation in changed)


def missing_state(session: Session, id_: CommitId) -> Gone | None:
    """Why the state of a version is not stored. None if the state is stored."""
    availability = session.repo.availability(id_)
    return availability if isinstance(availability, Gone) else None


def forgotten_on(time_ns: int | None, absent: bool = False) -> str:
    """``forgotten on 2026-11-21T10:00:00+01:00``, or ``state absent``.

    Empty if the state is stored.
    """
    if absent:
        return "state absent"
    return "" if time_ns is None else f"forgotten on {format_time(time_ns, precise=False)}"


def note_absent(session: Session, states: int) -> None:
    """If states are absent, prints how to fetch them."""
    if states:
        are = "are" if states > 1 else "is"
        session.note(
            f"{count(states, 'state')} {are} absent, because the versions were fetched without "
            "states: 'mvc fetch REMOTE REV...' fetches them"
        )


def state_json(time_ns: int | None, absent: bool) -> dict[str, Any]:
    """The time at which a state was forgotten, and whether the state is absent."""
    return {**stamped("forgotten", None if absent else time_ns), "absent": absent}


def _code(commit: Commit, *, full: bool) -> str:
    """The git commit of the code, in the form of ``git describe --dirty``."""
    code = printable(commit.code if full else commit.code[:10])
    return f"{code}-dirty" if commit.dirty else code


def signed_line(session: Session, subject: CommitId | Deployed) -> str | None:
    """A text about the signature of a version or deployment.

    None if it has no signature, and the setting ``sign.allowed_signers`` is unset.
    """
    try:
        checked = session.repo.verify(subject)
    except MvcError as error:  # the other lines are printed nevertheless
        return f"not checked: {printable(error.message)}"
    if checked.trust == "unsigned" and not session.repo.config.get("sign.allowed_signers"):
        return None
    return session.paint(str(checked), "good" if checked.trust == "good" else "bad")


def signature_of(session: Session, subject: CommitId | Deployed) -> Checked | None:
    """The signature of a version or deployment, for JSON. None if it cannot be checked."""
    with suppress(MvcError):
        return session.repo.verify(subject)
    return None


def details(
    session: Session,
    entry: LogEntry,
    *,
    signed: str | None = None,
    steps: Mapping[str, Any] | None = None,
    prefix: int = 0,
) -> list[str]:
    """The lines about a commit below its first line. The last lines are the message.

    Lines are folded to the width of the terminal minus ``prefix``. ``signed``: the text about the
    commit's signature. ``steps``: the arguments of ``_steps``, if training steps are recorded.
    """
    commit, full = entry.commit, session.verbose
    when = format_time(commit.time_ns, precise=False)
    room = (session.width or 0) - _LABEL - prefix
    facts = [
        ("Parents", " ".join(p.short for p in commit.parents) if commit.parents[1:] else None),
        ("Author", who(commit.author, entry.sent_by)),
        ("Signed", signed),
        ("Date", f"{when} ({format_age(commit.time_ns, session.now_ns())})"),
        ("Pipeline", printable(commit.pipeline)),
        ("Root", commit.root.hex() if full else None),
        ("Manifest", commit.manifest.hex() if full else None),
        ("Code", _code(commit, full=full) or None),
        ("Run", printable(commit.run) or None),
        ("Metrics", session.few(measured(entry.metrics).split("  "), room) or None),
        ("Params", session.few(_params_text(entry.params).split("  "), room) or None),
        *(("Note", note_line(annotation)) for annotation in entry.annotations),
        ("Relation", _related(entry.relations or ()) or None),
        ("Stored", "as a reset point" if entry.reset_point else None),
        ("Steps", steps and _steps(**steps)),
        ("Carries", printable(", ".join(commit.attached)) or None),
        ("State", "absent" if entry.absent else forgotten_on(entry.forgotten_ns) or None),
        ("Weights", None if entry.dropped is None else f"dropped; {entry.dropped}"),
        *(("Deployed", _deployed(session, d)) for d in entry.deployments),
    ]
    lines = [(f"{name + ':':9} {value}", _LABEL) for name, value in facts if value is not None]
    if commit.message.strip():
        message = map(printable, commit.message.strip().splitlines())
        lines += [("", 0), *((f"    {line}".rstrip(), 4) for line in message)]
    folds = (session.folded(line, " " * indent, prefix) for line, indent in lines)
    return [line for fold in folds for line in fold]


def _steps(start: CommitId, batches: int, rows: int, seconds: float | None) -> str:
    replayed = "not proven" if seconds is None else f"replayed in about {seconds:.3g} s"
    return (
        f"{count(batches, 'batch', 'batches')} of {count(rows, 'row')} after {start.short}, "
        f"{replayed}"
    )


def note_line(annotation: Annotation) -> str:
    """The line of an annotation.

    ``nightly evaluation  auc=0.91  (ada@host, 2026-11-20T10:00:00+01:00)``.
    """
    when = format_time(annotation.time_ns, precise=False)
    parts = (
        one_line(annotation.note),
        measured(annotation.metrics),
        _params_text(annotation.params),
    )
    return "  ".join([*filter(None, parts), f"({printable(annotation.author)}, {when})"])


def who(author: str, sent_by: str) -> str:
    """The author and the sender: ``ada (sent by token ci)``. A sender equal to the author is
    omitted.
    """
    sent = f"(sent by {printable(sent_by)})" if sent_by not in {"", author} else ""
    return " ".join(filter(None, (printable(author), sent)))


def recorded_late(session: Session, deployed: Deployed, *, cell: bool = False) -> str:
    """The time at which a deployment was recorded, if more than a minute after it went live.

    Otherwise empty.
    """
    recorded_ns, minute = deployed.recorded_ns, 60 * 10**9
    return session.moment(recorded_ns, cell=cell) if recorded_ns > deployed.time_ns + minute else ""


def _params_text(params: Mapping[str, str]) -> str:
    return "  ".join(f"{printable(k)}={printable(v)}" for k, v in sorted(params.items()))


def print_deployed(session: Session, schema: str, done: Deployed, words: str, **more: str) -> None:
    """Prints a deployment: as JSON, or as ``words`` with target, commit and ``more`` filled in."""
    warn_of_deployment(session, done)
    if not session.answered(schema, {"deployment": done}) and not session.quiet:
        commit = session.paint(done.commit.short, "id")
        target = session.paint(printable(done.target), "target")
        text = words.format(target=target, commit=commit, **more)
        session.lines(session.folded(f"{text} at {session.moment(done.time_ns)}"))
    note_unsent(session, done.target)


def warn_of_deployment(session: Session, done: Deployed) -> None:
    """Warns of likely mistakes in a new deployment or retraction."""
    target = printable(done.target)
    process = session.repo.recorder(target=done.target)
    if process is not None:
        session.warn(
            f"a training deploys to {target}: {process}; the training keeps committing, but stops "
            "deploying there until it restarts or calls deploy_again()"
        )
    if done.retracted:
        return
    if done.time_ns > done.recorded_ns:
        session.warn(f"the deployment goes live in the future, at {session.moment(done.time_ns)}")
    if done.clock_back:
        session.warn(
            f"the clock is behind the newest record of {target}: the live version is the one "
            "recorded last, but '--at TIME' uses the recorded times"
        )
    targets = [name for name in session.repo.targets() if name != done.target]
    if targets and done.replaces is None and len(session.repo.deployments(done.target)) == 1:
        from difflib import get_close_matches

        close = get_close_matches(done.target, targets, n=1)
        near = f"; did you mean {printable(close[0])}?" if close else ""
        session.warn(
            f"{target} is a new target{near} "
            f"('mvc deploy --retract {done.commit.short} {target}' withdraws this)"
        )


def _deployed(session: Session, deployed: Deployed) -> str:
    suffix = " (retracted)" if deployed.retracted else ""
    text = f"{deployed.target} at {session.moment(deployed.time_ns)}{suffix}"
    return who(text, deployed.sent_by)


def as_json(entry: LogEntry) -> dict[str, Any]:
    """A commit with its refs, annotations and deployments."""
    return {
        **fields(entry.commit),
        **fields(entry, "metrics params annotations refs deployments sent_by"),
        **state_json(entry.forgotten_ns, absent=entry.absent),
        "dropped": entry.dropped,
    }
