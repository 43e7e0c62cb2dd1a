"""Finds the token for a remote: in the environment, or in a file that other users cannot read.

The environment variable ``MVC_TOKEN_AT_GPU_LAB`` has the token for all remotes on the host
``gpu.lab``. If a remote ``origin`` is on this machine, its token is in ``MVC_TOKEN_ORIGIN``. This
variable is not used for other machines, because the name of a remote does not determine its host.
mvc sends only a text that has the form of a token. So if ``token_file`` names a wrong file, the
content of this file is not sent.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import urlsplit

from blake3 import blake3

from mvc.errors import InvalidConfig
from mvc.io.files import FileSystem
from mvc.io.process import trusted_owners
from mvc.names import printable
from mvc.remote.remotes import DEFAULT, Remote
from mvc.remote.scopes import TOKEN_FORM
from mvc.repo.config import TOKEN

_OTHER = re.compile(r"[^A-Z0-9_]")
_LABEL = r"[a-z0-9](?:(?:-+|_)?[a-z0-9])*"
_USUAL = re.compile(
    rf"(?:(?:{_LABEL}\.)*(?!\d+(?::|\Z)){_LABEL}|\d+(?:\.\d+){{3}}|\[[0-9a-f:]+\])(?::\d+)?",
    re.ASCII | re.IGNORECASE,
)
"""Matches host names and IP addresses, with or without a port. No two of these hosts have the same
variable.
"""
_BY_OTHERS = 0o077
_LONGEST = 1024


def variable_of(remote: Remote) -> str:
    """The environment variable with the token for a remote.

    The variable contains the host in upper case: ``.`` and ``:`` become ``_``, ``-`` becomes
    ``__``, ``_`` becomes ``___``. For an unusual host, the variable contains a hash of the host.
    For a remote on this machine, the variable contains the name of the remote.
    """
    if remote.is_on_this_machine:
        name = _OTHER.sub("_", (remote.name or DEFAULT).upper())
        return TOKEN + re.sub("^AT_", "AT", name)  # only variables of hosts begin with AT_
    host = urlsplit(remote.url).netloc
    if _USUAL.fullmatch(host) is None:
        return f"{TOKEN}AT__{blake3(host.lower().encode()).hexdigest(16).upper()}"
    return f"{TOKEN}AT_{_OTHER.sub('_', host.upper().replace('_', '___').replace('-', '__'))}"


def read_token(fs: FileSystem, remote: Remote) -> str | None:
    """The token for a remote, or None. Raises InvalidConfig, in a text without the token."""
    where, is_named = variable_of(remote), bool(remote.name) or not remote.is_on_this_machine
    text = (os.environ.get(where, "").strip() or None) if is_named else None
    if text is None and remote.token_file:
        path = Path(remote.token_file).expanduser()
        where = printable(str(path))
        facts = fs.stat(path)
        if facts is None:
            raise InvalidConfig(
                f"the token file {where} does not exist", hint="check the option token_file"
            )
        if facts.permissions & _BY_OTHERS or facts.owner not in trusted_owners():
            raise InvalidConfig(
                f"other users can read or change the token file {where}",
                hint=f"chmod 600 {where}",
            )
        text = fs.read_bytes(path, _LONGEST).decode("ascii", "replace")
    if text is None:
        return None
    if TOKEN_FORM.fullmatch(text.strip()) is None:
        raise InvalidConfig(
            f"{where} does not contain a token",
            hint="use the line that 'mvc serve token add' printed",
        )
    return text.strip()
