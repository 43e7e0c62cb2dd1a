"""Statements of every kind, for tests of what holds for all of them."""

from __future__ import annotations

from hypothesis import strategies as st

from mvc.ids import CommitId, Root, StatementId
from mvc.model.statement import (
    AnnotationStatement,
    Deployment,
    ReplayProof,
    Retraction,
    Signature,
    Statement,
    Tombstone,
)

NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
TEXTS = NAMES | st.just("")
IDS = st.binary(min_size=32, max_size=32)
MOMENTS = st.integers(-(1 << 62), 1 << 62)
STATEMENT_IDS = st.none() | IDS.map(StatementId)
_COMMON = {
    "subject": IDS,
    "author": TEXTS,
    "reason": TEXTS,
    "node": st.binary(min_size=16, max_size=16),
    "recorded_ns": MOMENTS,
    "hybrid_ns": st.integers(0, 1 << 63),
}
_FLOATS = st.floats(allow_nan=False)
STATEMENTS: st.SearchStrategy[Statement] = st.one_of(
    st.builds(
        Deployment, target=NAMES, time_ns=MOMENTS, replaces=STATEMENT_IDS,
        returned_to=STATEMENT_IDS, ahead_ms=st.none() | MOMENTS, **_COMMON,
    ),
    st.builds(Retraction, target=TEXTS, replaces=STATEMENT_IDS, **_COMMON),
    st.builds(
        AnnotationStatement, metrics=st.dictionaries(NAMES, _FLOATS, max_size=2),
        params=st.dictionaries(NAMES, TEXTS, max_size=2), note=TEXTS, **_COMMON,
    ),
    st.builds(Tombstone, root=IDS.map(Root), **_COMMON),
    st.builds(
        ReplayProof, path=NAMES, base=IDS.map(CommitId), milliseconds=st.integers(0, 1 << 62),
        environment=TEXTS, **_COMMON,
    ),
    st.builds(
        Signature, of_statement=st.booleans(), signed_ns=st.integers(0, (1 << 63) - 1),
        before=STATEMENT_IDS, blob=st.binary(max_size=40), **_COMMON,
    ),
)  # fmt: skip
