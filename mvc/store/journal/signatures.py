"""Signatures of versions, deployments and retractions, as an entry of the journal holds them.

An entry names what was signed, and has the signature as OpenSSH makes it (PROTOCOL.sshsig), in
binary. What bytes were signed follows from what is named (``repo/signatures``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

from mvc.ids import CommitId, DeploymentId
from mvc.limits import MAX_REF_BYTES, MAX_SIGNATURE, MAX_SIGNATURES
from mvc.model.canonical import Reader, Writer

Signed: TypeAlias = Literal["version", "deployment", "retraction"]
_KINDS: tuple[Signed, ...] = ("version", "deployment", "retraction")
_ID = 16
_NO_ID = DeploymentId(b"")


class Signature(Struct, frozen=True):
    """``blob`` vouches for the version ``commit``, or for its ``deployment`` on ``target``.

    ``kind`` says for what: a retraction is one of that deployment. ``time_ns``: when it was made.
    ``before``: the deployment that was recorded before it on the target, empty for the first one.
    Other kinds have none.
    """

    kind: Signed
    commit: CommitId
    time_ns: int
    blob: bytes
    target: str = ""
    deployment: DeploymentId = _NO_ID
    before: DeploymentId = _NO_ID


def write_signatures(signatures: Sequence[Signature]) -> bytes:
    """In canonical form."""
    writer = Writer().uint(len(signatures))
    for each in signatures:
        writer.uint(_KINDS.index(each.kind)).raw(each.commit).uint(each.time_ns)
        if each.kind != "version":
            writer.text(each.target).raw(each.deployment)
        if each.kind == "deployment":
            writer.blob(each.before)
        writer.blob(each.blob)
    return writer.done()


def read_signatures(data: bytes, where: str) -> tuple[Signature, ...]:
    """What ``write_signatures`` wrote. Raises DamagedData."""
    reader = Reader(data, where)
    found = tuple(_read(reader) for _ in range(reader.count(MAX_SIGNATURES)))
    reader.end()
    return found


def _read(reader: Reader) -> Signature:
    kind, commit = _KINDS[reader.uint(len(_KINDS) - 1)], CommitId(reader.raw(32))
    time_ns = reader.uint((1 << 63) - 1)
    target, deployment, before = "", _NO_ID, _NO_ID
    if kind != "version":
        target, deployment = reader.text(MAX_REF_BYTES), DeploymentId(reader.raw(_ID))
    if kind == "deployment":
        before = DeploymentId(reader.blob(_ID))
        if len(before) not in {0, _ID}:
            raise reader.fail("a deployment is named by 16 bytes")
    blob = reader.blob(MAX_SIGNATURE)
    return Signature(
        kind, commit, time_ns, blob, target=target, deployment=deployment, before=before
    )
