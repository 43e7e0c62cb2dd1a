"""The public door: ``Repository`` with ``storage`` and ``remotes``.

A method looks its arguments up and calls one verb of a lower row; no verb lives here. Lower rows
open a repository as users do, by ``mvc.Repository``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.faces import face

if TYPE_CHECKING:
    from mvc.api.absent import entered, fetches
    from mvc.api.clone import clone, visit
    from mvc.api.given import opened
    from mvc.api.remotes import RemoteRefs, Remotes, Tracking, refs_of
    from mvc.api.repository import Repository
    from mvc.api.storage import Storage
    from mvc.maintenance.backup import restore
    from mvc.maintenance.stats import Stats
    from mvc.repo.lookup.revisions import Rev
    from mvc.repo.statements.live import Deployed

__all__ = [
    "Deployed",
    "RemoteRefs",
    "Remotes",
    "Repository",
    "Rev",
    "Stats",
    "Storage",
    "Tracking",
    "clone",
    "entered",
    "fetches",
    "opened",
    "refs_of",
    "restore",
    "visit",
]

_IN = {
    "Deployed": "mvc.repo.statements.live",
    "RemoteRefs": "mvc.api.remotes",
    "Remotes": "mvc.api.remotes",
    "Repository": "mvc.api.repository",
    "Rev": "mvc.repo.lookup.revisions",
    "Stats": "mvc.maintenance.stats",
    "Storage": "mvc.api.storage",
    "Tracking": "mvc.api.remotes",
    "clone": "mvc.api.clone",
    "entered": "mvc.api.absent",
    "fetches": "mvc.api.absent",
    "opened": "mvc.api.given",
    "refs_of": "mvc.api.remotes",
    "restore": "mvc.maintenance.backup",
    "visit": "mvc.api.clone",
}

__getattr__ = face(__name__, _IN)
