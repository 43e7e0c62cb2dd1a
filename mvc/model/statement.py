"""Statements: immutable assertions about a version or another statement (docs/format.md).

A statement, such as a deployment, has the same bytes in every repository. Each kind of statement is
a class. All kinds have the fields of ``Statement``. The additional fields of a kind are its *body*.
Statements with the same *topic*, such as the deployments on one target, are ordered by time. Some
kinds are *evidence*: undo and gc never remove such statements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, ClassVar

from msgspec import Struct, field

from mvc.canonical import Reader, Writer
from mvc.errors import WrongUsage
from mvc.ids import DIGEST_SIZE, CommitId, Root, StatementId
from mvc.limits import (
    MAX_COMMIT,
    MAX_MESSAGE,
    MAX_NAME_BYTES,
    MAX_REASON,
    MAX_REF_BYTES,
    MAX_SIGNATURE,
)
from mvc.model.commit import read_metrics, read_params, write_metrics, write_params
from mvc.model.hashing import digest
from mvc.names import encode_text
from mvc.types import FIRST_RELEASE

NODE = 16
"""Length of a node's id in bytes. A node is a repository that records statements."""
MAX_STATEMENT = 2 * MAX_COMMIT
"""The largest size of one statement in bytes."""
NO_NODE = b""
_FARTHEST = 1 << 63
_TAG = b"mvc.statement.1"
_Field = tuple[Callable[[Writer, Any], object], Callable[[Reader], Any]]
"""How a field of a body is written, and how it is read."""


def _text(limit: int) -> _Field:
    return Writer.text, lambda reader: reader.text(limit)


def _target(reader: Reader) -> str:
    target = reader.text(MAX_REF_BYTES)
    if not target:
        raise reader.fail("a deployment has no target")
    return target


def _id_or_none(reader: Reader) -> StatementId | None:
    data = reader.blob(DIGEST_SIZE)
    if len(data) not in {0, DIGEST_SIZE}:
        raise reader.fail(f"a statement is named by {DIGEST_SIZE} bytes")
    return StatementId(data) if data else None


def _write_or_none(writer: Writer, number: int | None) -> None:
    writer.uint(0) if number is None else writer.uint(1).sint(number)


_STATEMENT: _Field = (lambda writer, id_: writer.blob(id_ or b""), _id_or_none)


class Statement(Struct, frozen=True, dict=True, kw_only=True):
    """A statement of ``author`` about ``subject``, which is a commit or another statement.

    ``node``: the repository that recorded the statement. ``recorded_ns``: the moment of recording,
    by the clock of this repository. ``hybrid_ns``: a hybrid logical time, which orders the
    statements of one topic. These three fields are empty until the statement is recorded.
    """

    subject: bytes
    author: str = ""
    reason: str = ""
    node: bytes = NO_NODE
    recorded_ns: int = 0
    hybrid_ns: int = 0

    code: ClassVar[int]
    name: ClassVar[str]
    feature: ClassVar[str]
    body: ClassVar[Mapping[str, _Field]]  # fields of this kind, in the order of their encoding
    is_evidence: ClassVar[bool] = False  # neither undo nor gc removes such a statement
    retractable: ClassVar[bool] = False  # a retraction may name such a statement

    @property
    def target(self) -> str:
        """The target of a deployment, or of the retraction of a deployment; otherwise empty."""
        return ""

    @property
    def topic(self) -> str | tuple[int, bytes]:
        """The target. If the statement has no target, its kind and subject."""
        return self.target or (self.code, self.subject)

    @property
    def commit(self) -> CommitId | None:
        """The version that is the subject. None if the subject is another statement."""
        return CommitId(self.subject)

    @property
    def order(self) -> tuple[int, StatementId]:
        """Sort key within the topic. A statement has the same key in every repository."""
        return self.hybrid_ns, self.id

    @cached_property
    def encoded(self) -> bytes:
        writer = Writer().uint(self.code).raw(self.subject).text(self.author)
        writer.text(check_reason(self.reason))
        writer.raw(self.node).sint(self.recorded_ns).uint(self.hybrid_ns)
        body = Writer()
        for name, (write, _) in self.body.items():
            write(body, getattr(self, name))
        return writer.blob(body.done()).done()

    @cached_property
    def id(self) -> StatementId:
        return StatementId(digest(_TAG, self.encoded))

    @staticmethod
    def decode(data: bytes, where: str) -> Statement:
        """Raises DamagedData unless ``data`` is canonical."""
        reader = Reader(data, where)
        kind = KINDS[reader.uint(len(KINDS) - 1)]
        subject = reader.raw(DIGEST_SIZE)
        author, reason = reader.text(MAX_NAME_BYTES), reader.text(MAX_REASON)
        node, recorded_ns, hybrid_ns = reader.raw(NODE), reader.sint(), reader.uint(_FARTHEST)
        body = Reader(reader.blob(MAX_STATEMENT), where)
        reader.end()
        fields = {name: read(body) for name, (_, read) in kind.body.items()}
        body.end()
        statement = kind(
            subject=subject,
            author=author,
            reason=reason,
            node=node,
            recorded_ns=recorded_ns,
            hybrid_ns=hybrid_ns,
            **fields,
        )
        statement.__dict__["encoded"] = data  # ``data`` is canonical: each field has one form
        return statement


class Deployment(Statement, frozen=True, dict=True, kw_only=True):
    """A version went live on ``target`` at ``time_ns``.

    ``replaces``: the deployment that was live on the target until then, as far as the recording
    repository knew. ``returned_to``: in a rollback, the deployment that the rollback repeats.
    ``ahead_ms``: if a serving machine reports the deployment, how far the machine's clock was
    ahead.
    """

    target: str
    time_ns: int
    replaces: StatementId | None = None
    returned_to: StatementId | None = None
    ahead_ms: int | None = None

    code, name, feature, is_evidence = 0, "deployment", FIRST_RELEASE, True
    retractable = True

    body = {
        "target": (Writer.text, _target),
        "time_ns": (Writer.sint, Reader.sint),
        "replaces": _STATEMENT,
        "returned_to": _STATEMENT,
        "ahead_ms": (_write_or_none, lambda reader: reader.sint() if reader.uint(1) else None),
    }


class Retraction(Statement, frozen=True, dict=True, kw_only=True):
    """Withdraws the subject, which is a deployment or an annotation.

    ``target``: the target of the deployment; empty if the subject is an annotation. ``replaces``:
    the deployment that was live on the target when the retraction was recorded.
    """

    target: str = ""
    replaces: StatementId | None = None

    code, name, feature, is_evidence = 1, "retraction", FIRST_RELEASE, True

    @property
    def commit(self) -> None:
        return None

    body = {"target": _text(MAX_REF_BYTES), "replaces": _STATEMENT}


class AnnotationStatement(Statement, frozen=True, dict=True, kw_only=True):
    """Metrics, params and a note that were added to a version after its commit."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    note: str = ""

    code, name, feature = 2, "annotation", FIRST_RELEASE
    retractable = True

    body = {
        "metrics": (write_metrics, read_metrics),
        "params": (write_params, read_params),
        "note": _text(MAX_MESSAGE),
    }


class Tombstone(Statement, frozen=True, dict=True, kw_only=True):
    """The state of a version is purged. ``root``: the Merkle root of this state."""

    root: Root

    code, name, feature, is_evidence = 3, "tombstone", FIRST_RELEASE, True

    body = {"root": (Writer.raw, lambda reader: Root(reader.raw(DIGEST_SIZE)))}


class ReplayProof(Statement, frozen=True, dict=True, kw_only=True):
    """A replay of a version's recipe computed exactly the tensors of the version's file ``path``.

    ``base``: the version from which the replay started. ``milliseconds``: how long the replay took.
    ``environment``: a description of where the replay ran.
    """

    path: str
    base: CommitId
    milliseconds: int
    environment: str

    code, name, feature = 4, "proof", FIRST_RELEASE

    body = {
        "path": _text(MAX_NAME_BYTES),
        "base": (Writer.raw, lambda reader: CommitId(reader.raw(DIGEST_SIZE))),
        "milliseconds": (Writer.uint, lambda reader: reader.uint(1 << 62)),
        "environment": _text(MAX_NAME_BYTES),
    }


class Signature(Statement, frozen=True, dict=True, kw_only=True):
    """The signature ``blob`` of a version, or of a statement if ``of_statement``.

    ``signed_ns``: when the signature was made. ``before``: for the signature of a deployment or
    retraction, the newest deployment on the target when the signature was made.
    """

    of_statement: bool
    signed_ns: int
    blob: bytes
    before: StatementId | None = None

    code, name, feature = 5, "signature", FIRST_RELEASE

    @property
    def commit(self) -> CommitId | None:
        return None if self.of_statement else CommitId(self.subject)

    body = {
        "of_statement": (Writer.uint, lambda reader: bool(reader.uint(1))),
        "signed_ns": (Writer.uint, lambda reader: reader.uint(_FARTHEST - 1)),
        "before": _STATEMENT,
        "blob": (Writer.blob, lambda reader: reader.blob(MAX_SIGNATURE)),
    }


KINDS: tuple[type[Statement], ...] = (
    Deployment,
    Retraction,
    AnnotationStatement,
    Tombstone,
    ReplayProof,
    Signature,
)
"""The kinds of statements. The number of a kind is its index here."""


def check_reason(reason: str) -> str:
    """Returns ``reason``; raises WrongUsage if ``reason`` is too long."""
    if len(encode_text(reason)) > MAX_REASON:
        raise WrongUsage(f"the reason is longer than {MAX_REASON:,} bytes")
    return reason


def node_of(note: str) -> bytes:
    """The node id of a repository. ``note``: the note in the first entry of its operation log."""
    try:
        node = bytes.fromhex(note)
    except ValueError:
        node = b""
    return node if len(node) == NODE else digest(b"mvc.node-name.1", encode_text(note))[:NODE]
