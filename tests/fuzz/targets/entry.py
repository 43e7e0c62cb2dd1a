# ruff: noqa: E501
"""The payload of one journal entry."""

from mvc.ids import CommitId, ManifestId, Root, StatementId
from mvc.model.commit import Commit
from mvc.model.statement import (
    AnnotationStatement,
    Deployment,
    ReplayProof,
    Retraction,
    Signature,
    Tombstone,
)
from mvc.store.journal.entries import Entry, RefChange, Region, StateMark

_ID = CommitId(bytes(range(32)))
_STAMP = {"author": "me", "reason": "é", "node": bytes(16), "recorded_ns": 4, "hybrid_ns": 5}


def run(data: bytes) -> None:
    entry = Entry.decode(data, "a test")
    again = Entry.decode(entry.encoded, "a test")
    assert again.encoded == entry.encoded  # entries with a metric that is NaN are not equal


def seeds() -> list[bytes]:
    commit = Commit(ManifestId(bytes(32)), Root(bytes(32)), (_ID,), "me", 5, 60, "m", {"a": 1.0})
    said = (
        Retraction(subject=_ID, target="prod", replaces=StatementId(_ID), **_STAMP),
        AnnotationStatement(subject=_ID, metrics={"a": 1.0}, params={"b": "c"}, note="n", **_STAMP),
        Tombstone(subject=_ID, root=Root(_ID), **_STAMP),
        ReplayProof(subject=_ID, path="a.pt", base=_ID, milliseconds=5, environment="e", **_STAMP),
        Signature(
            subject=_ID,
            of_statement=True,
            signed_ns=7,
            before=StatementId(_ID),
            blob=b"s",
            **_STAMP,
        ),
        Deployment(
            subject=_ID, target="t", time_ns=4, returned_to=StatementId(_ID), ahead_ms=-1, **_STAMP
        ),
    )
    return [
        Entry("init", 1).encoded,
        Entry(
            "commit", 2, "n", regions=(Region(1, 8, 100),), commits=(commit,),
            refs=(RefChange("heads/main", _ID, commit.id), RefChange("HEAD", None, "main")),
            marks=(bytes(8),),
            statements=(Deployment(subject=commit.id, target="prod", time_ns=-5, **_STAMP),), previous=(1,),
        ).encoded,
        Entry("forget", 3, undoes=1, states=(StateMark(_ID, "dropped", "a.pt"),)).encoded,
        *(Entry("said", 4, "", "me", "é", statements=(each,), previous=(0,)).encoded for each in said),
    ]  # fmt: skip
