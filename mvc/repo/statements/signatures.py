"""Signs versions and deployments when they are recorded, and verifies signatures.

The entry of the journal (the file with all operations) that records a version or deployment also
contains the signature.

The signature of a deployment names a predecessor: the target's newest deployment at the time of
signing. A deployment is trusted if an allowed signer signed it, and if its predecessor is an older
deployment of the target. Between a deployment and its predecessor, only trusted deployments from
other repositories may be recorded. So rewritten, inserted and removed deployments are detected,
except for the removal of a target's newest deployments.
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
from mvc.types import Counted, Progress

VERSIONS, DEPLOYMENTS = "mvc-version", "mvc-deployment"
"""Namespaces of SSH signatures. A list of allowed signers may permit a signer only some of them."""
_KEY = "sign.key"


class Signing(Struct, frozen=True):
    """The key file, and whether versions and deployments are signed with this key."""

    key: Path
    versions: bool
    deployments: bool


def signing(
    store: Store, choice: bool | None, *, version: bool = False, deployment: bool = False
) -> Signing | None:
    """How to sign an operation that records a version or deployment. None: do not sign.

    ``choice``: whether the caller wants a signature (None: as in the user's settings). Raises
    CannotSign if there is no key.
    """
    if choice is False or not (version or deployment):
        return None
    try:
        settings = own_config(store.fs, os.environ)
    except MvcError:
        if choice:
            raise
        return None  # the settings cannot be read: do not sign
    versions = version and bool(choice or settings.get("sign.commits"))
    deployments = deployment and bool(choice or settings.get("sign.deployments"))
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
            f"no key to sign with: the setting {_KEY} is empty",
            hint=f"set it: 'mvc config --user {_KEY} ~/.ssh/id_ed25519'",
        )
    return file


def signed(snapshot: Snapshot, entry: Entry, how: Signing | None) -> Entry:
    """Returns the entry with signatures. If ``how`` is None, returns ``entry`` unchanged.

    An SSH agent may ask the user, so call this without the journal's lock if possible.
    """
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
    for statement in entry.statements if how.deployments else ():
        if not statement.target:
            continue
        last = next((newest.id for newest in newest_first(snapshot, statement.target)), None)
        blob = sign(how.key, DEPLOYMENTS, signed_statement(statement.id, last, now))
        yield Signature(
            subject=statement.id,
            author=statement.author,
            of_statement=True,
            signed_ns=now,
            blob=blob,
            before=last,
        )


# -- signed bytes (docs/format.md) -----------------------------------------------------------


def signed_version(commit: CommitId, signed_ns: int) -> bytes:
    """The bytes that are signed for a version. The version's id covers all content and history."""
    return digest(b"mvc.signed-version.1", commit, encode_uint(signed_ns))


def signed_statement(id_: StatementId, before: StatementId | None, signed_ns: int) -> bytes:
    """The bytes that are signed for a deployment or retraction.

    The bytes depend on the statement's id, the predecessor, and the time of signing.
    """
    return digest(b"mvc.signed-statement.1", id_, before or b"", encode_uint(signed_ns))


_ALLOWED, _REVOKED = "sign.allowed_signers", "sign.revoked"
_MOST = 64  # the largest number of signatures that are checked for one record
_BEST_FIRST: tuple[Trust, ...] = ("good", "revoked", "not-allowed", "unknown", "bad", "unsigned")
_UNSIGNED = Checked("unsigned")


class Vouched(Struct, frozen=True):
    """A deployment, and the checks of up to three signatures.

    ``signature``: the check of the deployment's signature. ``version``: the check of the version's
    signature. ``retraction``: the check of the retraction's signature; None if the deployment is
    not retracted. ``problems``: reasons why the deployment is not trusted. A version needs no
    signature, because the deployment's signature covers the version.
    """

    deployment: Deployed
    signature: Checked
    version: Checked
    retraction: Checked | None = None
    problems: tuple[str, ...] = ()


def of_version(store: Store, commit: CommitId) -> Checked:
    """The check of a version's best signature."""
    return _Verifier(store).version(commit)


def of_deployment(store: Store, deployed: Deployed) -> Checked:
    """The check of a deployment's best signature. The predecessors are not checked."""
    return _Verifier(store).deployment(deployed)[0]


def verify(
    store: Store,
    target: str | None = None,
    *,
    since: int | None = None,
    progress: Progress | None = None,
) -> tuple[Vouched, ...]:
    """Checks all deployments on a target, or on all targets, in the order of recording.

    ``since``: only deployments that were recorded or went live at this time or later. ``progress``:
    counts two signatures for each deployment: the signature of the deployment, and the signature of
    its version. Raises UnknownTarget, DamagedData, NotInstalled; InvalidConfig if the user's
    settings name no allowed signers.
    """
    verifier = _Verifier(store)
    if verifier.signers.allowed is None:
        raise InvalidConfig(
            f"no allowed signers are known: the setting {_ALLOWED} is empty",
            hint=f"'mvc config --user {_ALLOWED} ~/.config/mvc/allowed_signers' names the list",
        )
    snapshot = store.fresh()
    chosen: list[tuple[list[Deployed], list[int]]] = []
    for name in chosen_targets(snapshot, target):
        note_gaps(snapshot, name, None)
        line = snapshot.retry_on_rewrite(partial(all_on, snapshot, name))
        chosen.append((line, _from(line, since)))
    counted = Counted(progress, sum(2 * len(places) for _, places in chosen))
    return tuple(vouched for pair in chosen for vouched in verifier.line(*pair, counted))


class _Verifier:
    """Checks signatures by the signer lists of the user's settings."""

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
        """The best check of a deployment's signatures, and the checked signature or None.

        If the deployment was rewritten, the signature in its journal entry is of a statement that
        does not exist any more. So this signature is checked, too.
        """
        recorded = self._snapshot.by_sequence(deployed.sequence)
        every = () if recorded is None else recorded.entry.of(Signature)
        strays = [
            signature
            for signature in every
            if signature.of_statement and self._snapshot.statement(signature.subject) is None
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
        """The check of the best signature of the deployment's retraction."""
        for _, retraction in self._snapshot.about(Retraction, deployed.id)[:1]:
            return self._statement(retraction.id)[0]
        return _UNSIGNED

    def line(self, line: list[Deployed], chosen: Iterable[int], counted: Counted) -> list[Vouched]:
        """Checks the ``chosen`` deployments of a target.

        ``line``: all deployments of the target, in the order of recording.
        """
        checks = {n: self.deployment(line[n]) for n in counted.iterate(chosen, "signatures")}
        problems: dict[int, list[str]] = {n: [] for n in checks}
        places = {deployed.id: n for n, deployed in enumerate(line)}
        for n, (checked, signature) in sorted(checks.items()):
            if checked.trust != "good" or signature is None:
                problems[n].append(checked.words)
                continue
            before = signature.before
            at = -1 if before is None else places.get(before)
            if at is None or at >= n:
                problem = "is not on record" if at is None else "was recorded later"
                short = "" if before is None else before.short
                problems[n].append(f"the predecessor that its signature names, {short}, {problem}")
                continue
            for between in (m for m in range(at + 1, n) if m in checks):
                is_good = checks[between][0].trust == "good"
                if not is_good or self._node(line[between]) == self._node(line[n]):
                    follows = f"{line[n].commit.short} directly follows another deployment"
                    problems[between].append(f"inserted: a later signature says that {follows}")
        return [
            self._vouched(line[n], checks[n][0], problems[n])
            for n in counted.iterate(checks, "signatures")
        ]

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
        """The repository that recorded a deployment."""
        pair = self._snapshot.statement(deployed.id)
        return b"" if pair is None else pair[1].node

    def _rows(self, subject: bytes) -> list[Signature]:
        """Signatures in the order of recording, which a forged time does not change."""
        every = self._snapshot.about(Signature, subject)
        return [row for _, row in sorted(every, key=lambda pair: pair[0].sequence)]

    def _best(
        self, rows: Iterable[Signature], namespace: str, message: Callable[[Signature], bytes]
    ) -> tuple[Checked, Signature | None]:
        """The best check among several signatures, and the checked signature or None."""
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
    """Indices of the deployments that were recorded or went live at ``since`` or later."""
    if since is None:
        return list(range(len(line)))
    first = next((n for n, d in enumerate(line) if d.recorded_ns >= since), len(line))
    return [n for n, d in enumerate(line) if n >= first or d.time_ns >= since]


def _named_file(store: Store, name: str) -> Path | None:
    """The file that a setting names, or None. Raises InvalidConfig."""
    text = str(own_config(store.fs, os.environ).get(name))
    if not text:
        return None
    file = user_path(name, text)
    if store.fs.stat(file) is None:
        raise InvalidConfig(
            f"{name} names a file that does not exist: {printable(str(file))}",
            hint=f"create it, or run 'mvc config --user --unset {name}'",
        )
    try:
        store.fs.open_read(file).close()
    except MvcError as error:
        raise InvalidConfig(
            f"{name} names a file that cannot be read: {error.message}", hint=error.hint
        ) from error
    return file
