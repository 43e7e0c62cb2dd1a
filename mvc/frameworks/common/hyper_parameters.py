"""Turns the configuration of a training framework into params (named texts) of a version.

Only plain values, such as numbers and short texts, become params. Secrets, long texts and other
objects are left out. The name of a nested value has the names of all levels, joined by dots.
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
_LONGEST = 200  # the most bytes of a name and of a text, and the limit of items of a list
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
    """Collects params from ``sources``: pairs of a prefix for the names, and a configuration.

    A configuration is a mapping, a namespace or a dataclass. If two sources have the same name, the
    first source counts. Numbers, truth values, None and lists become JSON. A member of an
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
    """Whether a name or its value looks like a secret. All names below a secret name are secret."""
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
