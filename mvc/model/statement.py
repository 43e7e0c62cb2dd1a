"""Statements: immutable assertions about a version or another statement (docs/format.md).

A statement's bytes are equal in every repository. Each kind is a class that declares everything
specific: its number and name, the feature a reader needs, its body, its topic, and whether it
remains as evidence.
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
"""Bytes of a node's id."""
MAX_STATEMENT = 2 * MAX_COMMIT
"""Bytes of one statement."""
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
    """``author`` asserted it about ``subject``, a commit or a statement, because of ``reason``.

    ``node``: the repository that recorded it, at ``recorded_ns`` by its clock; ``hybrid_ns`` orders
    it within its topic. These three are empty in a draft until it is published.
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
    body: ClassVar[Mapping[str, _Field]]  # further fields, in the order of writing
    is_evidence: ClassVar[bool] = False  # neither undo nor gc removes it
    retractable: ClassVar[bool] = False  # a retraction may name it

    @property
    def target(self) -> str:
        """The target of a deployment or its retraction; otherwise empty."""
        return ""

    @property
    def topic(self) -> str | tuple[int, bytes]:
        """The target, or kind and subject; statements are ordered within their topic."""
        return self.target or (self.code, self.subject)

    @property
    def commit(self) -> CommitId | None:
        """The version it is about; None if it is about another statement."""
        return CommitId(self.subject)

    @property
    def order(self) -> tuple[int, StatementId]:
        """Sort key within its topic, equal in every repository."""
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
        statement.__dict__["encoded"] = data  # the reader accepts one form of each field
        return statement


class Deployment(Statement, frozen=True, dict=True, kw_only=True):
    """A version went live on ``target`` at ``time_ns``.

    ``replaces``: the deployment live there then, as known by its node. ``returned_to``: for a
    rollback, the deployment it went back to. ``ahead_ms``: for a node's report, how far the node's
    clock was ahead.
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
    """A deployment on ``target``, or without one an annotation, does not count."""

    target: str = ""
    replaces: StatementId | None = None

    code, name, feature, is_evidence = 1, "retraction", FIRST_RELEASE, True

    @property
    def commit(self) -> None:
        return None

    body = {"target": _text(MAX_REF_BYTES), "replaces": _STATEMENT}


class AnnotationStatement(Statement, frozen=True, dict=True, kw_only=True):
    """Metrics, params and a note, added to a version later."""

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
    """The state of a version, with this Merkle root, is purged."""

    root: Root

    code, name, feature, is_evidence = 3, "tombstone", FIRST_RELEASE, True

    body = {"root": (Writer.raw, lambda reader: Root(reader.raw(DIGEST_SIZE)))}


class ReplayProof(Statement, frozen=True, dict=True, kw_only=True):
    """A replay of a version's recipe made its tensors at ``path``.

    It started at the version ``base`` and took ``milliseconds``; ``environment``: where.
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
    """The signature ``blob``, made at ``signed_ns``, of a version or (``of_statement``) a
    statement.

    ``before``: the target's last deployment at that time.
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
"""By number."""


def check_reason(reason: str) -> str:
    """Returns ``reason``; raises WrongUsage if it is too long."""
    if len(encode_text(reason)) > MAX_REASON:
        raise WrongUsage(f"the reason is longer than {MAX_REASON:,} bytes")
    return reason


def node_of(note: str) -> bytes:
    """The node id of a repository whose first entry has this note."""
    try:
        node = bytes.fromhex(note)
    except ValueError:
        node = b""
    return node if len(node) == NODE else digest(b"mvc.node-name.1", encode_text(note))[:NODE]
