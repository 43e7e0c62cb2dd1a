"""What a signature signs: 32 bytes that follow from what is on record (docs/format.md)."""

from __future__ import annotations

from msgspec import Struct

from mvc.ids import CommitId, DeploymentId
from mvc.model.canonical import Writer
from mvc.model.hashing import digest
from mvc.names import encode_text
from mvc.store.journal.entries import Deployment
from mvc.store.journal.stamps import Stamp

VERSIONS, DEPLOYMENTS = "mvc-version", "mvc-deployment"
"""The namespaces: a list of allowed signers may say who signs which."""


class Said(Struct, frozen=True):
    """By whom an operation was done, when, and why."""

    author: str
    time_ns: int
    reason: str


def version(commit: CommitId, signed_ns: int) -> bytes:
    """Of a version: its id, and with it all that it holds and comes from."""
    return digest(b"mvc.signed-version.1", commit, _uint(signed_ns))


def deployment(
    made: Deployment, stamp: Stamp, said: Said, *, before: DeploymentId, signed_ns: int
) -> bytes:
    """Of a deployment: all that is on record, and which one came before it on the target.

    When it was recorded is the stamp's, not the operation's.
    """
    return digest(
        b"mvc.signed-deployment.1",
        *(encode_text(made.target), _sint(made.time_ns), _sint(stamp.recorded_ns), made.commit),
        *(stamp.node, _uint(stamp.hybrid_ns), before),
        *(encode_text(said.author), encode_text(said.reason), _uint(signed_ns)),
    )


def retraction(target: str, deployment: DeploymentId, said: Said, *, signed_ns: int) -> bytes:
    """Of a retraction: of which deployment, by whom, when, and why."""
    return digest(
        b"mvc.signed-retraction.1",
        *(encode_text(target), deployment, _sint(said.time_ns)),
        *(encode_text(said.author), encode_text(said.reason), _uint(signed_ns)),
    )


def _sint(value: int) -> bytes:
    return Writer().sint(value).done()


def _uint(value: int) -> bytes:
    return Writer().uint(value).done()
