"""Signs versions and deployments while they are recorded, with the key of the user's settings.

A signature is made before the journal's lock is taken, because an agent may ask its user. It stands
in the entry that records what it is about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from mvc.errors import CannotSign, MvcError
from mvc.ids import CommitId, StatementId
from mvc.model.canonical import encode_uint
from mvc.model.hashing import digest
from mvc.model.statement import Signature
from mvc.names import printable
from mvc.repo.config import Config, user_path
from mvc.repo.context import Context
from mvc.repo.deployments import newest_first
from mvc.store.journal.entries import Entry
from mvc.store.journal.frames import Recorded
from mvc.store.publishing.publish import completed
from mvc.store.snapshot import Snapshot

VERSIONS, DEPLOYMENTS = "mvc-version", "mvc-deployment"
"""The namespaces: a list of allowed signers may say who signs which."""
Send = Callable[[Entry], Callable[[Recorded], None]]
"""Sends an entry to a remote; the result is called once it is recorded here."""
_KEY = "sign.key"
_TRIES = 3


class Signing(Struct, frozen=True):
    """What of an operation is signed, and with the key in which file."""

    key: Path
    versions: bool
    deployments: bool


def signing(
    context: Context, asked: bool | None, *, version: bool = False, deployment: bool = False
) -> Signing | None:
    """What is signed of an operation that makes a version or says something of a deployment.

    As the user's settings say if ``asked`` is None; None if it is nothing. Raises CannotSign where
    there is no key.
    """
    if asked is False or not (version or deployment):
        return None
    try:
        settings = context.own_settings()
    except MvcError:
        if asked:
            raise
        return None  # as without settings: who verifies is told
    versions = version and bool(asked or settings.get("sign.commits"))
    deployments = deployment and bool(asked or settings.get("sign.deployments"))
    if not (versions or deployments):
        return None
    return Signing(_key_file(context, settings), versions, deployments)


def _key_file(context: Context, settings: Config) -> Path:
    text = str(settings.get(_KEY))
    if not text:
        raise CannotSign(
            f"there is no key to sign with: the setting {_KEY} is empty",
            hint=f"name yours: 'mvc config --user {_KEY} ~/.ssh/id_ed25519'",
        )
    file = user_path(_KEY, text)
    if context.store.fs.stat(file) is None:
        raise CannotSign(
            f"the key to sign with is not there: {printable(str(file))}",
            hint=f"the setting {_KEY} names it, and 'ssh-keygen -t ed25519' makes one",
        )
    return file


def publish(
    context: Context,
    make: Callable[[int], Entry],
    how: Signing | None,
    *,
    release: Callable[[], None] | None = None,
    send: Send | None = None,
) -> Recorded:
    """Publishes the entry that ``make`` returns for a moment, with its signatures.

    ``make`` runs again under the journal's lock; if another entry is due by then, that is signed.
    Where others are faster each time, it is signed under the lock in the end.
    ``send``: gives the entry to a remote first. If that raises, nothing is recorded.
    """
    store = context.store

    def drafted(moment: int) -> Entry:
        return completed(store.snapshot, make(moment))

    if send is not None:
        context.fresh()
        draft = _signed(store.snapshot, drafted(store.now_ns()), how)
        after = send(draft)
        recorded = store.publish(lambda: draft)
        after(recorded)
        return recorded
    for _ in range(0 if how is None else _TRIES):
        context.fresh()
        moment = store.now_ns()
        draft = drafted(moment)
        with suppress(_Overtaken):
            signed = _signed(store.snapshot, draft, how)

            def final(moment: int = moment, draft: Entry = draft, signed: Entry = signed) -> Entry:
                if drafted(moment).encoded != draft.encoded:
                    raise _Overtaken
                return signed

            return store.publish(final, release=release)
    return store.publish(
        lambda: _signed(store.snapshot, drafted(store.now_ns()), how), release=release
    )


def _signed(snapshot: Snapshot, entry: Entry, how: Signing | None) -> Entry:
    """The entry with its signatures, all of it complete."""
    signatures = () if how is None else _signatures(snapshot, entry, how)
    return completed(snapshot, replace(entry, statements=(*entry.statements, *signatures)))


class _Overtaken(Exception):
    """What was signed is not what is due any more."""


def _signatures(snapshot: Snapshot, entry: Entry, how: Signing) -> Iterator[Signature]:
    from mvc.io.ssh_keygen import sign  # who signs nothing does without

    now = entry.time_ns
    for commit in entry.commits if how.versions else ():
        blob = sign(how.key, VERSIONS, signed_version(commit.id, now))
        yield Signature(
            subject=commit.id, author=entry.done_by, of_statement=False, signed_ns=now, blob=blob
        )
    for each in entry.statements if how.deployments else ():
        if not each.target:
            continue
        last = next((newest.id for newest in newest_first(snapshot, each.target)), None)
        blob = sign(how.key, DEPLOYMENTS, signed_statement(each.id, last, now))
        yield Signature(
            subject=each.id,
            author=each.author,
            of_statement=True,
            signed_ns=now,
            blob=blob,
            before=last,
        )


# -- what is signed (docs/format.md) ---------------------------------------------------------


def signed_version(commit: CommitId, signed_ns: int) -> bytes:
    """Of a version: its id, and with it all that it holds and comes from."""
    return digest(b"mvc.signed-version.1", commit, encode_uint(signed_ns))


def signed_statement(id_: StatementId, before: StatementId | None, signed_ns: int) -> bytes:
    """Of a deployment or retraction: its id, and what came before it on the target."""
    return digest(b"mvc.signed-statement.1", id_, before or b"", encode_uint(signed_ns))
