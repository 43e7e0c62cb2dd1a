"""Lists the kinds of remotes: for each URL scheme, the properties of its remotes.

Other modules do not compare schemes, but read these properties. One property is the module that
opens remotes of the scheme. This module is imported when a remote is opened.
"""

from __future__ import annotations

import re
from importlib import import_module
from types import ModuleType

from msgspec import Struct

from mvc.text import listed

_USER = r"(?:[A-Za-z0-9_][\w.+-]*@)?"
_HOST = r"(?:[A-Za-z0-9][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\])"
_PORT = r"(?::[0-9]{1,5})?"
_FOR_SERVERS = (
    "a token is read from the variable MVC_TOKEN_AT_HOST, with the name of the host, or from a "
    "file of mode 0600"
)
_FOR_CLOUDS = "keys are read from the environment"
_TRANSPORTS = "mvc.remote.transports"
_CLOUD = f"{_TRANSPORTS}.bucket.cloud"


class RemoteKind(Struct, frozen=True):
    """The properties that all remotes of one scheme share.

    ``form``: an example of a URL, for messages. ``module``: the name of a module with
    ``open_transport(remote)``, or for buckets ``open_objects(remote)``. ``authority``: a regular
    expression for the text between ``//`` and the path; empty for paths on this machine.
    ``secrets``: a message that says where credentials come from. ``runs_commands``: whether the
    module has ``run(remote, arguments)``, which runs mvc on the host of the remote.
    """

    form: str
    module: str
    authority: str = ""
    secrets: str = ""
    is_bucket: bool = False
    runs_commands: bool = False

    def load(self) -> ModuleType:
        """The imported module."""
        return import_module(self.module)

    def takes(self, authority: str) -> bool:
        """Whether a URL of this kind can have this authority."""
        return re.fullmatch(self.authority, authority, re.ASCII) is not None


KINDS = {
    "file": RemoteKind("PATH", f"{_TRANSPORTS}.folder"),
    "ssh": RemoteKind(
        "ssh://HOST/PATH", f"{_TRANSPORTS}.ssh", _USER + _HOST + _PORT, "ssh asks its agent",
        runs_commands=True,
    ),
    "https": RemoteKind("https://HOST/NAME", f"{_TRANSPORTS}.http", _HOST + _PORT, _FOR_SERVERS),
    "http": RemoteKind("http://HOST/NAME", f"{_TRANSPORTS}.http", _HOST + _PORT, _FOR_SERVERS),
    "unix": RemoteKind("unix:PATH", f"{_TRANSPORTS}.http"),
    "bucket": RemoteKind("bucket:PATH", f"{_TRANSPORTS}.bucket.objects", is_bucket=True),
    "s3": RemoteKind("s3://BUCKET", _CLOUD, _HOST, _FOR_CLOUDS, is_bucket=True),
    "gs": RemoteKind("gs://BUCKET", _CLOUD, _HOST, _FOR_CLOUDS, is_bucket=True),
    "az": RemoteKind("az://CONTAINER", _CLOUD, _HOST, _FOR_CLOUDS, is_bucket=True),
}  # fmt: skip
"""Maps schemes to kinds. A URL without a scheme is of the kind ``file``."""

FORMS = f"a remote is a {listed([kind.form for kind in KINDS.values()])}"

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(//)?(.*)", re.DOTALL)


def scheme_of(url: str) -> tuple[str, str]:
    """The scheme of a URL, and the rest of the URL. ``KINDS`` may lack this scheme.

    A text ``NAME:PATH`` without ``//`` is a file path, unless NAME is a scheme for local paths.
    """
    if (match := _URL.fullmatch(url)) is None:
        return "file", url
    scheme, slashes, rest = match[1].lower(), match[2], match[3]
    is_path = scheme in KINDS and not KINDS[scheme].authority
    if slashes or (is_path and scheme != "file"):
        return scheme, rest
    return "file", url
