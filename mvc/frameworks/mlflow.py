"""MLflow: tags every run with the version of the weights from which the run started.

The setting ``mlflow.tags`` enables the tags. MLflow loads ``VersionTags`` through the entry point
``mlflow.run_context_provider``.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from mlflow.tracking.context.abstract_context import RunContextProvider

from mvc.api import Config, Repository, settings
from mvc.errors import MvcError, NotARepository

_log = logging.getLogger(__name__)
_SETTING, _VARIABLE = "mlflow.tags", "MVC_MLFLOW_TAGS"


class VersionTags(RunContextProvider):
    """Adds tags to each run that starts inside a repository which enables the tags."""

    def in_context(self) -> bool:
        return True  # ``tags`` is empty if there is nothing to add

    def tags(self) -> dict[str, str]:
        """The tags ``mvc.commit``, ``mvc.root`` and ``mvc.branch`` for HEAD.

        Warns if HEAD cannot be read. Empty if the repository does not enable the tags.
        """
        try:
            with Repository.open(config=_settings) as repo:
                if not repo.config.get(_SETTING):
                    return {}
                at = repo.head()
                tags = {} if at.branch is None else {"mvc.branch": at.branch}
                if at.commit is not None:
                    root = repo.version(at.commit).root
                    tags |= {"mvc.commit": str(at.commit), "mvc.root": str(root)}
                return tags
        except NotARepository:
            return {}
        except MvcError as error:
            _log.warning("mvc adds no tags: %s", error)
            return {}


def _settings(file: Path | None) -> Config:
    """Settings from ``file``. Ignores the variables ``MVC_*``, except ``MVC_MLFLOW_TAGS``."""
    names = [name for name in os.environ if name == _VARIABLE or not name.startswith("MVC_")]
    return settings(file, {name: os.environ[name] for name in names})
