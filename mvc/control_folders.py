"""Folders of version control systems. Settings in such a folder can run programs."""

from __future__ import annotations

from itertools import pairwise

VERSION_CONTROL = frozenset({".mvc", ".git", ".hg", ".svn", ".sl", ".jj", ".bzr", ".pijul"})
"""Names reserved by these systems, in upper or lower case. mvc never reads such a folder."""

MARKERS = {"cvs": "Entries", "_darcs": "format"}
"""Names that ordinary folders may have, too.

If the folder contains the file named here, the folder belongs to a version control system.
"""

_SHORT = {"git~1", "mvc~1"}  # the 8.3 names of .git and .mvc on Windows
FOREIGN = VERSION_CONTROL | _SHORT
_SETTINGS = {
    "cvs": {"entries", "entries.log", "entries.static", "root", "repository", "tag", "template"}
    | {"base", "baserev", "notify", "checkin.prog", "update.prog"},
    "_darcs": {"format", "prefs", "hashed_inventory", "inventory", "inventories", "patches"}
    | {"pristine", "pristine.hashed", "index"},
}


def is_foreign(path: str) -> bool:
    """Whether a path, with '/' between its parts, leads into a version control system's folder.

    If the folder has a name of ``MARKERS``, only paths of the system's own files count.
    """
    parts = path.casefold().split("/")
    return not FOREIGN.isdisjoint(parts) or any(
        name in _SETTINGS.get(folder, ()) for folder, name in pairwise(parts)
    )
