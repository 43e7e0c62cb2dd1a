"""Refuses repositories of other users unless the setting ``safe.directory`` lists them, as in git.

mvc searches ``.mvc`` in the working folder and in the parents of this folder. Files in ``.mvc``
control what commands do. A ``.mvc`` of another user could be an attack, so mvc does not read it.
"""

from __future__ import annotations

import os
from pathlib import Path

from mvc.errors import DubiousOwnership
from mvc.io.files import FileSystem
from mvc.io.process import trusted_owners, user_name
from mvc.names import printable
from mvc.repo.config import own_config

_SETTING = "safe.directory"


def refuse_foreign(fs: FileSystem, folder: Path) -> None:
    """Raises DubiousOwnership if ``folder`` belongs to another user.

    ``folder``: a ``.mvc``, or a copy of a ``.mvc``. If ``folder`` is a symbolic link, both the link
    and its target must belong to the user. ``safe.directory`` is read from the user's settings file
    and the environment.
    """
    identities = (fs.stat(folder, follow=False), fs.stat(folder))
    owners = {identity.owner for identity in identities if identity} - trusted_owners()
    if not owners:
        return
    root = fs.realpath(folder.parent if folder.name == ".mvc" else folder)
    allowed = str(own_config(fs, os.environ).get(_SETTING))
    names = [name for name in allowed.split(os.pathsep) if name]
    if "*" in names or any(name[0] == "/" and fs.realpath(Path(name)) == root for name in names):
        return
    import shlex  # rarely needed

    value = os.pathsep.join([*names, str(root)])
    if os.pathsep in str(root) or printable(value) != value:
        value = "*"
    raise DubiousOwnership(
        f"dubious ownership: {printable(str(folder))} belongs to {user_name(min(owners))}, "
        f"and you are {user_name(os.geteuid())}",
        hint=f"if you trust it: mvc config --user {_SETTING} {shlex.quote(value)}",
    )
