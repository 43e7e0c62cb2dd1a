"""Statements: what somebody asserted, once, about a version or another statement (docs/format.md).

A statement never changes, and its bytes are equal in every repository. Each kind is a class that
declares all that differs between kinds: its number and name, what a reader of the format must know,
its body, whose topic it belongs to, and whether a collection may leave it out.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

from msgspec import Struct, field

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
from mvc.model.canonical import Reader, Writer
from mvc.model.commit import read_metrics, read_params, write_metrics, write_params
from mvc.model.hashing import digest
from mvc.names import encode_text
from mvc.types import FIRST_RELEASE

NODE = 16
"""Bytes of a node."""
MAX_STATEMENT = 2 * MAX_COMMIT
"""Bytes of one statement."""
NO_NODE = b""
_FARTHEST = 1 << 63
_TAG = b"mvc.statement.1"


class Statement(Struct, frozen=True, dict=True, kw_only=True):
    """``author`` asserted it, because of ``reason``, about ``subject``: a commit or a statement.

    ``node``: the repository that recorded it, at ``recorded_ns`` by its clock; ``hybrid_ns`` orders
    it among those of its topic. These are open in a draft, until it is published.
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
    stays: ClassVar[bool] = False  # also if the version that it is about is collected

    @property
    def target(self) -> str:
        """That of a deployment or its retraction; empty for any other statement."""
        return ""

    @property
    def topic(self) -> str | tuple[int, bytes]:
        """The target, or kind and subject: a statement's order is one among those of its topic."""
        return self.target or (self.code, self.subject)

    @property
    def commit(self) -> CommitId | None:
        """The version that it is about; None if it is about another statement."""
        return CommitId(self.subject)

    @property
    def order(self) -> tuple[int, StatementId]:
        """Its place among the statements of its topic, the same in every repository."""
        return self.hybrid_ns, self.id

    @cached_property
    def encoded(self) -> bytes:
        writer = Writer().uint(self.code).raw(self.subject).text(self.author)
        writer.text(check_reason(self.reason))
        writer.raw(self.node).sint(self.recorded_ns).uint(self.hybrid_ns)
        body = Writer()
        self._write(body)
        return writer.blob(body.done()).done()

    @cached_property
    def id(self) -> StatementId:
        return StatementId(digest(_TAG, self.encoded))

    def _write(self, writer: Writer) -> None:
        raise NotImplementedError

    @staticmethod
    def read(reader: Reader) -> dict[str, Any]:
        """The fields of the body."""
        raise NotImplementedError

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
        fields = kind.read(body)
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

    ``replaces``: the deployment that was live there then, as far as its node knew. ``returned_to``:
    of a rollback, the deployment that it went back to. ``ahead_ms``: of what a node reports, how
    far its clock was ahead when the report came.
    """

    target: str
    time_ns: int
    replaces: StatementId | None = None
    returned_to: StatementId | None = None
    ahead_ms: int | None = None

    code, name, feature, stays = 0, "deployment", FIRST_RELEASE, True

    def _write(self, writer: Writer) -> None:
        writer.text(self.target).sint(self.time_ns)
        writer.blob(self.replaces or b"").blob(self.returned_to or b"")
        if self.ahead_ms is None:
            writer.uint(0)
        else:
            writer.uint(1).sint(self.ahead_ms)

    @staticmethod
    def read(reader: Reader) -> dict[str, Any]:
        return {
            "target": _target(reader),
            "time_ns": reader.sint(),
            "replaces": _id_or_none(reader),
            "returned_to": _id_or_none(reader),
            "ahead_ms": reader.sint() if reader.uint(1) else None,
        }


class Retraction(Statement, frozen=True, dict=True, kw_only=True):
    """A deployment on ``target``, or without one an annotation, does not count."""

    target: str = ""
    replaces: StatementId | None = None

    code, name, feature, stays = 1, "retraction", FIRST_RELEASE, True

    @property
    def commit(self) -> None:
        return None

    def _write(self, writer: Writer) -> None:
        writer.text(self.target).blob(self.replaces or b"")

    @staticmethod
    def read(reader: Reader) -> dict[str, Any]:
        return {"target": reader.text(MAX_REF_BYTES), "replaces": _id_or_none(reader)}


class AnnotationStatement(Statement, frozen=True, dict=True, kw_only=True):
    """What somebody found out about a version later: metrics and params by name, a note."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    note: str = ""

    code, name, feature = 2, "annotation", FIRST_RELEASE

    def _write(self, writer: Writer) -> None:
        write_metrics(writer, self.metrics)
        write_params(writer, self.params)
        writer.text(self.note)

    @staticmethod
    def read(reader: Reader) -> dict[str, Any]:
        metrics, params = read_metrics(reader), read_params(reader)
        return {"metrics": metrics, "params": params, "note": reader.text(MAX_MESSAGE)}


class Tombstone(Statement, frozen=True, dict=True, kw_only=True):
    """The state of a version, which has this Merkle root, is deleted for good."""

    root: Root

    code, name, feature, stays = 3, "tombstone", FIRST_RELEASE, True

    def _write(self, writer: Writer) -> None:
        writer.raw(self.root)

    @staticmethod
    def read(reader: Reader) -> dict[str, Any]:
        return {"root": Root(reader.raw(DIGEST_SIZE))}


class ReplayProof(Statement, frozen=True, dict=True, kw_only=True):
    """A replay of the recipe of a version, from the version ``base`` on, made the tensors at
    ``path`` again, in so many milliseconds; ``environment``: where.
    """

    path: str
    base: CommitId
    milliseconds: int
    environment: str

    code, name, feature = 4, "proof", FIRST_RELEASE

    def _write(self, writer: Writer) -> None:
        writer.text(self.path).raw(self.base).uint(self.milliseconds).text(self.environment)

    @staticmethod
    def read(reader: Reader) -> dict[str, Any]:
        return {
            "path": reader.text(MAX_NAME_BYTES),
            "base": CommitId(reader.raw(DIGEST_SIZE)),
            "milliseconds": reader.uint(1 << 62),
            "environment": reader.text(MAX_NAME_BYTES),
        }


class Signature(Statement, frozen=True, dict=True, kw_only=True):
    """``blob``, made at ``signed_ns``, vouches for a version or (``of_statement``) a statement.

    ``before``: the deployment that came last in the order of its target then.
    """

    of_statement: bool
    signed_ns: int
    blob: bytes
    before: StatementId | None = None

    code, name, feature = 5, "signature", FIRST_RELEASE

    @property
    def commit(self) -> CommitId | None:
        return None if self.of_statement else CommitId(self.subject)

    def _write(self, writer: Writer) -> None:
        writer.uint(int(self.of_statement)).uint(self.signed_ns)
        writer.blob(self.before or b"").blob(self.blob)

    @staticmethod
    def read(reader: Reader) -> dict[str, Any]:
        return {
            "of_statement": bool(reader.uint(1)),
            "signed_ns": reader.uint(_FARTHEST - 1),
            "before": _id_or_none(reader),
            "blob": reader.blob(MAX_SIGNATURE),
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
    """Returns it; raises WrongUsage if it is too long to be recorded."""
    if len(encode_text(reason)) > MAX_REASON:
        raise WrongUsage(f"the reason is longer than {MAX_REASON:,} bytes")
    return reason


def node_of(note: str) -> bytes:
    """The node of a repository whose first entry has this note."""
    try:
        node = bytes.fromhex(note)
    except ValueError:
        node = b""
    return node if len(node) == NODE else digest(b"mvc.node-name.1", encode_text(note))[:NODE]


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
