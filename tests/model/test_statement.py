"""Statements: canonical bytes, one id everywhere, and nothing but DamagedData for other bytes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.errors import DamagedData
from mvc.model.statement import KINDS, AnnotationStatement, Deployment, Retraction, Statement
from tests.model.statements import STATEMENTS
from tests.oracle import reader


@given(STATEMENTS)
def test_round_trip(statement: Statement) -> None:
    again = Statement.decode(statement.encoded, "here")
    assert again == statement
    assert (type(again), again.id, again.topic) == (
        type(statement), statement.id, statement.topic,
    )  # fmt: skip


@given(STATEMENTS)
def test_the_second_reader_sees_the_same(statement: Statement) -> None:
    told = reader.told(statement.encoded, 0)
    assert (told.kind, told.subject, told.id, told.topic) == (
        statement.code, statement.subject, statement.id, statement.topic,
    )  # fmt: skip


@given(STATEMENTS, st.data())
def test_other_bytes_are_another_statement_or_damage(
    statement: Statement, data: st.DataObject
) -> None:
    encoded = bytearray(statement.encoded)
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] ^= data.draw(st.integers(1, 255))
    try:
        other = Statement.decode(bytes(encoded), "here")
    except DamagedData:
        return
    other.__dict__.clear()  # so that it is encoded anew
    assert other.encoded == bytes(encoded) and other.id != statement.id


@given(STATEMENTS)
def test_cut_off_is_damage(statement: Statement) -> None:
    for data in (statement.encoded[:-1], statement.encoded + b"\0"):
        with pytest.raises(DamagedData):
            Statement.decode(data, "here")


@given(st.binary(max_size=300))
def test_hostile_bytes_are_damage(data: bytes) -> None:
    try:
        Statement.decode(data, "here")
    except DamagedData:
        return


def test_each_kind_is_declared_once() -> None:
    assert [kind.code for kind in KINDS] == list(range(len(KINDS)))
    assert len({kind.name for kind in KINDS}) == len(KINDS)


def test_topics() -> None:
    """A target is a topic; what is said of anything else is one with its kind."""
    made = Deployment(subject=bytes(32), target="prod", time_ns=1)
    assert made.topic == Retraction(subject=made.id, target="prod").topic == "prod"
    noted = AnnotationStatement(subject=bytes(32), metrics={"loss": math.nan})
    assert noted.topic == (2, bytes(32))
    assert Retraction(subject=noted.id).topic == (1, noted.id)


def test_a_deployment_has_a_target() -> None:
    data = Deployment(subject=bytes(32), node=bytes(16), target="", time_ns=1).encoded
    with pytest.raises(DamagedData, match="has no target"):
        Statement.decode(data, "here")
