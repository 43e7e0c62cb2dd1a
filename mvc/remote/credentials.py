"""Tokens of this machine: from the environment or a private file, never from a URL.

``MVC_TOKEN_ORIGIN`` is the token for the remote ``origin``. What is no token in form is never
sent anywhere, so that no other secret goes out by a wrong path.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from mvc.errors import InvalidConfig
from mvc.io.files import FileSystem
from mvc.io.process import trusted_owners
from mvc.model.names import printable
from mvc.remote.remotes import Remote
from mvc.repo.config import TOKEN

FORM = re.compile(r"mvc_[A-Za-z0-9_-]{43}")
"""256 bits in base64url."""
_BY_OTHERS = 0o077
_LONGEST = 1024


def variable_of(name: str) -> str:
    """The environment variable of the token for the remote ``name``."""
    return TOKEN + re.sub(r"[^A-Z0-9]", "_", name.upper())


def read_token(fs: FileSystem, remote: Remote) -> str | None:
    """The token for a remote, if there is one. Raises InvalidConfig, without a word of it."""
    if remote.name and (text := os.environ.get(variable_of(remote.name))) is not None:
        where = variable_of(remote.name)
    elif remote.token_file:
        path = Path(remote.token_file).expanduser()
        where = printable(str(path))
        facts = fs.stat(path)
        if facts is None:
            raise InvalidConfig(f"there is no file {where} for the token of {remote.name}")
        if facts.permissions & _BY_OTHERS or facts.owner not in trusted_owners():
            raise InvalidConfig(
                f"{where} holds a token, and others can read or change it",
                hint=f"chmod 600 {where}",
            )
        text = fs.read_bytes(path, _LONGEST).decode("ascii", "replace")
    else:
        return None
    if FORM.fullmatch(text.strip()) is None:
        raise InvalidConfig(
            f"what {where} holds is no token",
            hint="a token is the line that 'mvc serve token add' prints",
        )
    return text.strip()
