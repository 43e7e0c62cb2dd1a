"""MLflow: where it is asked for, every run says which version of the weights it began with.

MLflow finds ``VersionTags`` through the entry point ``mlflow.run_context_provider``; it gives tags
where the setting ``mlflow.tags`` is true.
"""

from __future__ import annotations

import logging
import os
from contextlib import closing

from mlflow.tracking.context.abstract_context import RunContextProvider

from mvc.errors import MvcError
from mvc.repo.config import KEYS, load_config, user_file
from mvc.repo.lookup import commits
from mvc.repo.lookup.refs import head
from mvc.repo.opening import open_context
from mvc.store.store import CONFIG, FOLDER
from mvc.system import FileSystem

_log = logging.getLogger(__name__)
_ASKED = KEYS["mlflow.tags"]


class VersionTags(RunContextProvider):
    """Tags of a run that begins in a repository, or in a folder below one, if it asks for them."""

    def in_context(self) -> bool:
        """Whether the repository of the current folder, the user or the environment asks."""
        fs = FileSystem()
        try:
            here = fs.cwd()
            for root in (here, *here.parents):
                if fs.stat(root / FOLDER) is not None:
                    # With the user's own and, of the environment, the variable of this setting.
                    given = {k: v for k, v in os.environ.items() if k == _ASKED.variable}
                    file, own = root / FOLDER / CONFIG, user_file(os.environ)
                    return bool(load_config(fs, file, own, given, flags={}).get(_ASKED.name))
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
