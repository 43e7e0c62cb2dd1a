"""Recognizes folders of version control systems, such as ``.git``.

mvc does not restore model files into these folders, because a file there can run programs.
"""

from __future__ import annotations

from itertools import pairwise

VERSION_CONTROL = frozenset({".mvc", ".git", ".hg", ".svn", ".sl", ".jj", ".bzr", ".pijul"})
"""Names that version control systems reserve. Upper and lower case count as equal.

mvc does not look for files in a folder with such a name.
"""

MARKERS = {"cvs": "Entries", "_darcs": "format"}
"""Maps a name of a version control folder that other folders may have, too, to a file.

If a folder with this name contains the file, it belongs to a version control system.
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

    A path into a folder with a name of ``MARKERS`` counts only if ``_SETTINGS`` has the next part.
    """
    parts = path.casefold().split("/")
    return not FOREIGN.isdisjoint(parts) or any(
        name in _SETTINGS.get(folder, ()) for folder, name in pairwise(parts)
    )
