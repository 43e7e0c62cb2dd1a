"""MLflow: every run says in its tags which version of the weights it began with.

MLflow finds ``VersionTags`` through the entry point ``mlflow.run_context_provider``.
"""

from __future__ import annotations

import logging
from contextlib import closing

from mlflow.tracking.context.abstract_context import RunContextProvider

from mvc.errors import MvcError
from mvc.io.files import FileSystem
from mvc.repo.lookup import commits
from mvc.repo.lookup.refs import head
from mvc.repo.opening import open_context
from mvc.store.store import FOLDER

_log = logging.getLogger(__name__)


class VersionTags(RunContextProvider):
    """Tags of a run that begins in a repository, or in a folder below one."""

    def in_context(self) -> bool:
        """Whether the current folder lies in a repository."""
        fs = FileSystem()
        try:
            here = fs.cwd()
            return any(fs.stat(folder / FOLDER) is not None for folder in (here, *here.parents))
        except MvcError as error:
            _log.warning("mvc gives no tags: %s", error)
            return False

    def tags(self) -> dict[str, str]:
        """``mvc.commit``, ``mvc.root`` and ``mvc.branch`` of HEAD; warns if unreadable."""
        try:
            context = open_context()
            with closing(context.store):
                at = head(context)
                found = {} if at.branch is None else {"mvc.branch": at.branch}
                if at.commit is not None:
                    root = commits.get(context, at.commit).root
                    found |= {"mvc.commit": str(at.commit), "mvc.root": str(root)}
        except MvcError as error:
            _log.warning("mvc gives no tags: %s", error)
            return {}
        return found
