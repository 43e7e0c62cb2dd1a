# ruff: noqa: E501
"""A commit's canonical bytes, and its time as it is shown."""

from msgspec.structs import replace

from mvc.ids import CommitId, ManifestId, Root
from mvc.model.commit import Commit
from mvc.times import format_time


def run(data: bytes) -> None:
    commit = Commit.decode(data)
    assert commit.encoded == data and len(commit.id) == 32
    assert format_time(commit.time_ns, commit.zone_minutes)


def seeds() -> list[bytes]:
    first = Commit(ManifestId(bytes(32)), Root(bytes(32)), (), "me", 10**18, 60)
    metrics = {"loss": 0.5, "nan": float("nan")}
    second = Commit(
        ManifestId(bytes(32)), Root(bytes(32)), (CommitId(first.id),), "é", -1, -720, "m\n", metrics, "raw", "c",
        {"lr": "0.1"},
    )  # fmt: skip
    third = replace(second, run="a b", dirty=True)
    return [first.encoded, second.encoded, third.encoded]
