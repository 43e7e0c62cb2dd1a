"""Hyper-parameters that a framework knows, as params of a version.

A framework's configuration contains paths, functions and tokens, too. Only plain values become
params. The name of a nested value has the names of all levels, joined by dots. Secrets, long texts
and objects are left out.
"""

from __future__ import annotations

import json
import re
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from types import SimpleNamespace

import numpy as np
import torch

_MOST = 200  # the most values that are recorded
_LONGEST = 200  # the most bytes of a name, and of a value as text
_DEEPEST = 4  # the most levels of nesting
_WORDS = (
    r"secret|passw(?:or)?d|passphrase|pwd|credential|auth(?!or(?!i))|bearer|cookie|private"
    r"|(?:api|access)[-_ ]?(?:key|token)"
)
_COUNTED = r"token(?!i[sz])|key"  # a number such as max_tokens is not secret
_SECRET = re.compile(_WORDS, re.IGNORECASE)
_SECRET_TEXT = re.compile(f"{_WORDS}|{_COUNTED}", re.IGNORECASE)
_LOGIN = re.compile(r"//[^/\s]*@|//[^/\s:]*:(?!\d+/)\S*@")  # a password may contain slashes
_QUERY = re.compile(r"[?&;#]([^?&;#=\s]+)=")
_SIGNATURE = re.compile(r"(?<![a-z])sig(?:nature)?(?![a-z])", re.IGNORECASE)


def hyper_parameters(*sources: tuple[str, object]) -> dict[str, str]:
    """Params of several sources. Each source has a prefix for the names of its params.

    If two sources have the same name, the first source counts. A source is a mapping, a namespace
    or a dataclass. Numbers, truth values, None and lists of these become JSON. A member of an
    enumeration becomes its value.
    """
    params: dict[str, str] = {}
    for prefix, source in sources:
        for name, text in _walk(prefix, source, _DEEPEST):
            if len(params) == _MOST:
                return params
            if _fits(name) and _fits(text):
                params.setdefault(name, text)
    return params


def _walk(prefix: str, value: object, levels: int) -> Iterator[tuple[str, str]]:
    """Yields names and texts of the plain values in ``value``."""
    value = _plain(value)
    if _is_secret(prefix, value) or not (prefix or isinstance(value, Mapping)):
        return
    if isinstance(value, str):
        yield prefix, value
    elif value is None or isinstance(value, int | float):
        yield prefix, json.dumps(value)
    elif isinstance(value, list | tuple) and len(value) < _LONGEST:
        parts = [_plain(part) for part in value]
        if all(part is None or isinstance(part, int | float | str) for part in parts) and not any(
            _holds_login(part) for part in parts
        ):
            yield prefix, json.dumps(parts)
    elif levels and isinstance(value, Mapping):
        for name in value:
            if isinstance(name, str) and name:
                key = f"{prefix}.{name}" if prefix else name
                yield from _walk(key, value[name], levels - 1)


def _plain(value: object) -> object:
    """The plain Python value of an enumeration, a numpy or torch scalar, a namespace or a
    dataclass.
    """
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, np.generic) or (isinstance(value, torch.Tensor) and value.numel() == 1):
        return value.item()
    if isinstance(value, Namespace | SimpleNamespace):
        return vars(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name, None) for field in fields(value)}
    return value


def _is_secret(name: str, value: object) -> bool:
    """Whether the name or the text looks like a secret.

    If a name does, everything nested below this name is secret, too.
    """
    if _holds_login(value):
        return True
    above, _, last = name.rpartition(".")
    number = value is None or isinstance(value, int | float)
    words = _SECRET if number else _SECRET_TEXT
    return words.search(last) is not None or _SECRET_TEXT.search(above) is not None


def _holds_login(value: object) -> bool:
    """Whether a text is a URL with a login, or a URL with a secret in its query."""
    if not isinstance(value, str):
        return False
    queried = _QUERY.findall(value)
    return _LOGIN.search(value) is not None or any(
        _SECRET_TEXT.search(name) or _SIGNATURE.search(name) for name in queried
    )


def _fits(text: str) -> bool:
    """Whether a name or value is short and printable enough for a param."""
    return text.isprintable() and len(text.encode("utf-8", "replace")) <= _LONGEST
