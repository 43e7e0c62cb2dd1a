# ruff: noqa: E501
"""The payload of one journal entry."""

from mvc.ids import CommitId, ManifestId, Root
from mvc.model.commit import Commit
from mvc.store.journal.entries import (
    Deployment,
    Entry,
    Evidence,
    Forgotten,
    RefChange,
    Region,
    Retraction,
)

_ID = CommitId(bytes(range(32)))


def run(data: bytes) -> None:
    entry = Entry.decode(data, "a test")
    again = Entry.decode(entry.encoded, "a test")
    assert again.encoded == entry.encoded  # entries with a metric that is NaN are not equal


def seeds() -> list[bytes]:
    commit = Commit(ManifestId(bytes(32)), Root(bytes(32)), (_ID,), "me", 5, 60, "m", {"a": 1.0})
    return [
        Entry("init", 1).encoded,
        Entry(
            "commit", 2, "n", (Region(1, 8, 100),), (commit,),
            (RefChange("heads/main", _ID, commit.id), RefChange("HEAD", None, "main")),
            (Deployment("prod", -5, commit.id, None),), (Retraction("prod", 1),), ("a",), (bytes(8),),
        ).encoded,
        Entry("forget", 3, forgotten=(Forgotten(_ID, True),), undoes=1).encoded,
        Entry(
            "annotate", 4, author="me", reason="é", evidence=(Evidence(_ID, {"a": 1.0}, {"b": "c"}, "n"),),
            deployments=(Deployment("prod", 4, _ID, 1, 0),),
        ).encoded,
    ]  # fmt: skip
