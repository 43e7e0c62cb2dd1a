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

from mvc.errors import CannotSign, DamagedData, MvcError
from mvc.ids import DeploymentId
from mvc.names import printable
from mvc.repo.config import Config, user_path
from mvc.repo.context import Context
from mvc.repo.lookup import stamping
from mvc.repo.signatures import statements
from mvc.repo.signatures.statements import DEPLOYMENTS, VERSIONS, Said
from mvc.store.journal.entries import Deployment, Entry, Retraction
from mvc.store.journal.frames import Recorded
from mvc.store.journal.signatures import Signature
from mvc.store.snapshot import Snapshot

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
    if send is not None:
        context.fresh()
        draft = make(store.now_ns())
        draft = draft if how is None else _signed(store.snapshot, draft, how)
        after = send(draft)
        recorded = store.publish(lambda: _following(store.snapshot, draft))
        after(recorded)
        return recorded
    if how is None:
        return store.publish(lambda: make(store.now_ns()), release=release)
    for _ in range(_TRIES):
        context.fresh()
        moment = store.now_ns()
        draft = make(moment)
        with suppress(_Overtaken):
            signed = _signed(store.snapshot, draft, how)

            def final(moment: int = moment, draft: Entry = draft, signed: Entry = signed) -> Entry:
                if make(moment).encoded != draft.encoded:
                    raise _Overtaken
                return signed

            return store.publish(final, release=release)
    return store.publish(
        lambda: _signed(store.snapshot, make(store.now_ns()), how), release=release
    )


def _following(snapshot: Snapshot, draft: Entry) -> Entry:
    """The entry behind what others recorded meanwhile."""
    made = []
    for each in draft.deployments:
        before = snapshot.newest_deployment(each.target)
        made.append(replace(each, previous=None if before is None else before.sequence))
    return replace(draft, deployments=tuple(made))


def _signed(snapshot: Snapshot, entry: Entry, how: Signing) -> Entry:
    return replace(entry, signatures=tuple(_signatures(snapshot, entry, how)))


class _Overtaken(Exception):
    """What was signed is not what is due any more."""


def _signatures(snapshot: Snapshot, entry: Entry, how: Signing) -> Iterator[Signature]:
    from mvc.io.ssh_keygen import sign  # who signs nothing does without

    now = entry.time_ns
    for commit in entry.commits if how.versions else ():
        blob = sign(how.key, VERSIONS, statements.version(commit.id, now))
        yield Signature("version", commit.id, now, blob)
    said = Said(entry.done_by, entry.done_ns, entry.reason)
    for made in entry.deployments if how.deployments else ():
        stamp = made.stamp
        assert stamp is not None
        before = stamping.newest(snapshot, made.target) or DeploymentId(b"")
        message = statements.deployment(made, stamp, said, before=before, signed_ns=now)
        blob, id_ = sign(how.key, DEPLOYMENTS, message), made.id(stamp)
        yield Signature(
            "deployment", made.commit, now, blob, target=made.target, deployment=id_, before=before
        )
    for taken in entry.retractions if how.deployments else ():
        origin, id_ = _retracted(snapshot, taken)
        message = statements.retraction(taken.target, id_, said, signed_ns=now)
        blob = sign(how.key, DEPLOYMENTS, message)
        yield Signature("retraction", origin.commit, now, blob, target=taken.target, deployment=id_)


def _retracted(snapshot: Snapshot, taken: Retraction) -> tuple[Deployment, DeploymentId]:
    there = snapshot.by_sequence(taken.sequence)
    origin = None if there is None else stamping.on(there, taken.target)
    if there is None or origin is None:
        raise DamagedData(f"the deployment of operation {taken.sequence} is lost")
    return origin, origin.id(snapshot.stamp_of(there, origin))
