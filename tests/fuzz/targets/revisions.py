"""Revisions, looked up in a real repository."""

import tempfile
from functools import cache
from pathlib import Path

from mvc.repo.handle import Handle
from mvc.repo.revisions import resolve_ref
from tests.repo.publishing import commit, repository, set_ref


@cache
def _repository() -> Handle:
    context = repository(Path(tempfile.mkdtemp(prefix="mvc-fuzz-")))
    for _ in range(3):
        last = commit(context)
    set_ref(context, "tags/v1", last)
    return context


def run(data: bytes) -> None:
    id_, _ = resolve_ref(_repository().store, data.decode("utf-8", "surrogateescape"))
    assert len(id_) == 32


def seeds() -> list[bytes]:
    return [
        b"HEAD",
        b"main~2",
        b"v1^1",
        b"HEAD@{yesterday}",
        b"main@{2026-11-20}~1",
        b"heads/main",
        b"0123456789",
    ]
