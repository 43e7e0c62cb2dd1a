"""Signatures of versions and deployments: made while they are recorded, and checked.

A signature is made before the journal's lock is taken, because an agent may ask its user. It stands
in the entry that records what it is about.

A deployment is vouched for if its signature is that of an allowed signer, and if the deployments
between it and the one that it followed, by its signature, came from other repositories and are
vouched for themselves. So one that was rewritten, inserted or taken out is named. That the last
ones of a target were taken out together does not show.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from mvc.canonical import encode_uint
from mvc.errors import CannotSign, InvalidConfig, MvcError
from mvc.ids import CommitId, StatementId
from mvc.io.ssh_keygen import Checked, Signers, Trust, check, sign
from mvc.model.hashing import digest
from mvc.model.statement import Retraction, Signature
from mvc.names import printable
from mvc.repo.config import own_config, user_path
from mvc.repo.statements.live import (
    Deployed,
    all_on,
    chosen_targets,
    newest_first,
    note_gaps,
)
from mvc.store.journal.entries import Entry
from mvc.store.publishing.publish import completed
from mvc.store.snapshot import Snapshot
from mvc.store.store import Store

VERSIONS, DEPLOYMENTS = "mvc-version", "mvc-deployment"
"""The namespaces: a list of allowed signers may say who signs which."""
_KEY = "sign.key"


class Signing(Struct, frozen=True):
    """What of an operation is signed, and with the key in which file."""

    key: Path
    versions: bool
    deployments: bool


def signing(
    store: Store, asked: bool | None, *, version: bool = False, deployment: bool = False
) -> Signing | None:
    """What is signed of an operation that makes a version or says something of a deployment.

    As the user's settings say if ``asked`` is None; None if it is nothing. Raises CannotSign where
    there is no key.
    """
    if asked is False or not (version or deployment):
        return None
    try:
        settings = own_config(store.fs, os.environ)
    except MvcError:
        if asked:
            raise
        return None  # as without settings: who verifies is told
    versions = version and bool(asked or settings.get("sign.commits"))
    deployments = deployment and bool(asked or settings.get("sign.deployments"))
    if not (versions or deployments):
        return None
    return Signing(_key_file(store), versions, deployments)


def _key_file(store: Store) -> Path:
    try:
        file = _named_file(store, _KEY)
    except InvalidConfig as error:
        raise CannotSign(error.message, hint=error.hint) from error
    if file is None:
        raise CannotSign(
            f"there is no key to sign with: the setting {_KEY} is empty",
            hint=f"name yours: 'mvc config --user {_KEY} ~/.ssh/id_ed25519'",
        )
    return file


def signed(snapshot: Snapshot, entry: Entry, how: Signing | None) -> Entry:
    """The entry with its signatures, all of it complete; as it is if ``how`` is None."""
    if how is None:
        return entry
    entry = completed(snapshot, entry)
    signatures = _signatures(snapshot, entry, how)
    return completed(snapshot, replace(entry, statements=(*entry.statements, *signatures)))


def _signatures(snapshot: Snapshot, entry: Entry, how: Signing) -> Iterator[Signature]:
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


_ALLOWED, _REVOKED = "sign.allowed_signers", "sign.revoked"
_MOST = 64  # signatures of one thing that are looked at
_BEST_FIRST: tuple[Trust, ...] = ("good", "revoked", "not-allowed", "unknown", "bad", "unsigned")
_UNSIGNED = Checked("unsigned")


class Vouched(Struct, frozen=True):
    """A deployment, and who vouches for it, for its version, and for its retraction if it has one.

    ``problems``: why nobody vouches for what is on record, each in one line; empty if somebody
    does. A version without a signature is no problem: the deployment's signature names it.
    """

    deployment: Deployed
    signature: Checked
    version: Checked
    retraction: Checked | None = None
    problems: tuple[str, ...] = ()


def of_version(store: Store, commit: CommitId) -> Checked:
    """Who vouches for a version."""
    return _Court(store).version(commit)


def of_deployment(store: Store, deployed: Deployed) -> Checked:
    """Who vouches for a deployment, wherever it stands among the others of its target."""
    return _Court(store).deployment(deployed)[0]


def verify(
    store: Store, target: str | None = None, *, since: int | None = None
) -> tuple[Vouched, ...]:
    """Every deployment on a target, or on any, as recorded; ``since``: those recorded from then on,
    or dated so.

    Raises UnknownTarget, DamagedData, NotInstalled, and InvalidConfig where the user's settings do
    not say whose signatures count.
    """
    court = _Court(store)
    if court.signers.allowed is None:
        raise InvalidConfig(
            f"whose signatures count is not known: the setting {_ALLOWED} is empty",
            hint=f"'mvc config --user {_ALLOWED} ~/.config/mvc/allowed_signers' names the list",
        )
    snapshot = store.fresh()
    found: list[Vouched] = []
    for name in chosen_targets(snapshot, target):
        note_gaps(snapshot, name, None)
        line = snapshot.retry_on_rewrite(partial(all_on, snapshot, name))
        found += court.line(line, _from(line, since))
    return tuple(found)


class _Court:
    """Checks signatures by the lists of the user's settings."""

    def __init__(self, store: Store) -> None:
        self._snapshot: Snapshot = store.fresh()
        self.signers = Signers(_named_file(store, _ALLOWED), _named_file(store, _REVOKED))
        self._versions: dict[CommitId, Checked] = {}

    def version(self, commit: CommitId) -> Checked:
        if commit not in self._versions:
            self._versions[commit] = self._version(commit)
        return self._versions[commit]

    def _version(self, commit: CommitId) -> Checked:
        rows = self._rows(commit)
        return self._best(rows, VERSIONS, lambda row: signed_version(commit, row.signed_ns))[0]

    def deployment(self, deployed: Deployed) -> tuple[Checked, Signature | None]:
        """Also the signature that says so; None if there is none.

        Of a record that was rewritten, the signature in the same entry names another one.
        """
        recorded = self._snapshot.by_sequence(deployed.sequence)
        every = () if recorded is None else recorded.entry.of(Signature)
        strays = [
            each
            for each in every
            if each.of_statement and self._snapshot.statement(each.subject) is None
        ]
        return self._statement(deployed.id, strays)

    def _statement(
        self, id_: StatementId, strays: Sequence[Signature] = ()
    ) -> tuple[Checked, Signature | None]:
        return self._best(
            [*self._rows(id_), *strays],
            DEPLOYMENTS,
            lambda row: signed_statement(id_, row.before, row.signed_ns),
        )

    def retraction(self, deployed: Deployed) -> Checked:
        """Who vouches for the retraction that counts."""
        for _, taken in self._snapshot.about(Retraction, deployed.id)[:1]:
            return self._statement(taken.id)[0]
        return _UNSIGNED

    def line(self, line: list[Deployed], chosen: Iterable[int]) -> list[Vouched]:
        """Some of the deployments of a target, all in the order in which they were recorded."""
        asked = {n: self.deployment(line[n]) for n in chosen}
        problems: dict[int, list[str]] = {n: [] for n in asked}
        places = {deployed.id: n for n, deployed in enumerate(line)}
        for n, (checked, signature) in sorted(asked.items()):
            if checked.trust != "good" or signature is None:
                problems[n].append(checked.words)
                continue
            before = signature.before
            at = -1 if before is None else places.get(before)
            if at is None or at >= n:
                what = "is not on record" if at is None else "is recorded after it"
                short = "" if before is None else before.short
                problems[n].append(f"the deployment that it followed, {short}, {what}")
                continue
            for between in (m for m in range(at + 1, n) if m in asked):
                is_good = asked[between][0].trust == "good"
                if not is_good or self._node(line[between]) == self._node(line[n]):
                    follows = f"{line[n].commit.short} followed another one directly"
                    problems[between].append(f"inserted: by its signature, {follows}")
        return [self._vouched(line[n], asked[n][0], problems[n]) for n in asked]

    def _vouched(self, deployed: Deployed, checked: Checked, problems: list[str]) -> Vouched:
        version, retraction = self.version(deployed.commit), None
        if version.trust == "revoked":
            problems.append(f"its version is {version.words}")
        if deployed.retracted:
            retraction = self.retraction(deployed)
            if retraction.trust != "good":
                problems.append(f"its retraction is {retraction.words}")
        return Vouched(deployed, checked, version, retraction, problems=tuple(problems))

    def _node(self, deployed: Deployed) -> bytes:
        """The repository in which a deployment was recorded."""
        found = self._snapshot.statement(deployed.id)
        return b"" if found is None else found[1].node

    def _rows(self, subject: bytes) -> list[Signature]:
        """In the order in which they came here: a stranger's clock puts none before others."""
        every = self._snapshot.about(Signature, subject)
        return [row for _, row in sorted(every, key=lambda pair: pair[0].sequence)]

    def _best(
        self, rows: Iterable[Signature], namespace: str, message: Callable[[Signature], bytes]
    ) -> tuple[Checked, Signature | None]:
        """What the best of several signatures is worth, and which one that is."""
        best: tuple[Checked, Signature | None] = _UNSIGNED, None
        for row in islice(rows, _MOST):
            checked = check(
                row.blob,
                message(row),
                namespace=namespace,
                signers=self.signers,
                time_ns=row.signed_ns,
            )
            if _BEST_FIRST.index(checked.trust) < _BEST_FIRST.index(best[0].trust):
                best = checked, row
            if checked.trust == "good":
                break
        return best


def _from(line: list[Deployed], since: int | None) -> list[int]:
    """The places from the first one recorded at ``since`` on, and of those that went live then."""
    if since is None:
        return list(range(len(line)))
    first = next((n for n, d in enumerate(line) if d.recorded_ns >= since), len(line))
    return [n for n, d in enumerate(line) if n >= first or d.time_ns >= since]


def _named_file(store: Store, name: str) -> Path | None:
    """The file that a setting names; None if it names none. Raises InvalidConfig."""
    text = str(own_config(store.fs, os.environ).get(name))
    if not text:
        return None
    file = user_path(name, text)
    if store.fs.stat(file) is None:
        raise InvalidConfig(
            f"{name} names a file that is not there: {printable(str(file))}",
            hint=f"write it, or 'mvc config --user --unset {name}'",
        )
    try:
        store.fs.open_read(file).close()
    except MvcError as error:
        raise InvalidConfig(
            f"{name} names a file that cannot be read: {error.message}", hint=error.hint
        ) from error
    return file
