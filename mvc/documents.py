"""Encodes msgspec structs as JSON documents, and decodes such documents.

A document names its schema, such as ``mvc.reference/1``. Ids are written as hexadecimal digits.
Decoding refuses a document that does not fit the struct's types and limits (``msgspec.Meta``).
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn, TypeVar

from msgspec import Struct, convert, to_builtins

from mvc.errors import UnsupportedFormat
from mvc.ids import Digest

_ID = re.compile(r"[0-9a-f]{64}")
_T = TypeVar("_T")


class OtherSchema(ValueError):
    """The schema of a document is not ``wanted``.

    ``schema``: the name of the document's schema; None if the document names no schema.
    """

    def __init__(self, schema: str | None, wanted: str) -> None:
        super().__init__(f"its schema is not {wanted}")
        self.schema, self.wanted = schema, wanted

    def unsupported(self, name: str) -> UnsupportedFormat | None:
        """The error for a document of an unknown schema; None if the document has no schema.

        A newer mvc may have written the document. ``name``: the name of the document.
        """
        if self.schema is None:
            return None
        return UnsupportedFormat(f"{name} has the schema {self.schema[:60]!r}, not {self.wanted}")


def encoded(value: Struct, schema: str, *, sort_keys: bool = False) -> bytes:
    """A document as indented JSON."""
    fields = fields_of(value, schema)
    return json.dumps(fields, indent=1, sort_keys=sort_keys, allow_nan=False).encode() + b"\n"


def fields_of(value: Struct, schema: str) -> dict[str, Any]:
    """A document as a dictionary that ``json.dumps`` can write."""
    fields: dict[str, Any] = to_builtins(value, enc_hook=_digits)
    return {"schema": schema, **fields}


def decoded(data: bytes, kind: type[_T], schema: str) -> _T:
    """The document in ``data``. Raises ValueError with a one-line message, or OtherSchema."""
    try:
        document = json.loads(data, parse_constant=_refuse_constant, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        raise ValueError("it is not JSON") from error
    name = document.pop("schema", None) if isinstance(document, dict) else None
    if name != schema:
        raise OtherSchema(name if isinstance(name, str) else None, schema)
    try:
        return convert(document, kind, dec_hook=_id)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _digits(value: object) -> str:
    if isinstance(value, Digest):
        return value.hex()
    raise NotImplementedError


def _id(kind: type, value: object) -> Digest:
    if not issubclass(kind, Digest):
        raise NotImplementedError
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise ValueError("an id has not 64 hexadecimal digits")
    return kind.parse(value)


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse_constant(text)


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")
