"""MLflow: where it is asked for, every run says which version of the weights it began with.

MLflow finds ``VersionTags`` through the entry point ``mlflow.run_context_provider``; it gives tags
where the setting ``mlflow.tags`` is true.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from mlflow.tracking.context.abstract_context import RunContextProvider

from mvc.api import Config, Repository, settings
from mvc.errors import MvcError, NotARepository

_log = logging.getLogger(__name__)
_ASKED, _VARIABLE = "mlflow.tags", "MVC_MLFLOW_TAGS"


class VersionTags(RunContextProvider):
    """Tags of a run that begins in a repository, or in a folder below one, if it asks for them."""

    def in_context(self) -> bool:
        return True  # ``tags`` says whether there are any

    def tags(self) -> dict[str, str]:
        """``mvc.commit``, ``mvc.root`` and ``mvc.branch`` of HEAD; warns if unreadable."""
        try:
            with Repository.open(config=_settings) as repo:
                if not repo.config.get(_ASKED):
                    return {}
                at = repo.head()
                found = {} if at.branch is None else {"mvc.branch": at.branch}
                if at.commit is not None:
                    root = repo.version(at.commit).root
                    found |= {"mvc.commit": str(at.commit), "mvc.root": str(root)}
                return found
        except NotARepository:
            return {}
        except MvcError as error:
            _log.warning("mvc gives no tags: %s", error)
            return {}


def _settings(file: Path | None) -> Config:
    """With the user's own and, of the environment, only the variable that asks for tags."""
    names = [name for name in os.environ if name == _VARIABLE or not name.startswith("MVC_")]
    return settings(file, {name: os.environ[name] for name in names})
