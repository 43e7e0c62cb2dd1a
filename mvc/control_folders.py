"""Folders of version control systems, whose settings can have a program run (layer 0)."""

from __future__ import annotations

from itertools import pairwise

VERSION_CONTROL = frozenset({".mvc", ".git", ".hg", ".svn", ".sl", ".jj", ".bzr", ".pijul"})
"""Names that are theirs alone, in any case of letters; mvc never looks into such a folder."""

MARKERS = {"cvs": "Entries", "_darcs": "format"}
"""Names that an ordinary folder may have, too: one is theirs if it has the file named here."""

_SHORT = {"git~1", "mvc~1"}  # what Windows calls .git and .mvc in eight letters
FOREIGN = VERSION_CONTROL | _SHORT
_SETTINGS = {
    "cvs": {"entries", "entries.log", "entries.static", "root", "repository", "tag", "template"}
    | {"base", "baserev", "notify", "checkin.prog", "update.prog"},
    "_darcs": {"format", "prefs", "hashed_inventory", "inventory", "inventories", "patches"}
    | {"pristine", "pristine.hashed", "index"},
}


def is_foreign(path: str) -> bool:
    """Whether a path with '/' between its parts leads to what belongs to such a system.

    Of the folders in ``MARKERS``, which need not be theirs, that is what the systems put there.
    """
    parts = path.casefold().split("/")
    return not FOREIGN.isdisjoint(parts) or any(
        name in _SETTINGS.get(folder, ()) for folder, name in pairwise(parts)
    )
