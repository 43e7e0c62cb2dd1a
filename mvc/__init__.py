"""mvc: git for model weights.

    >>> import mvc
    >>> repo = mvc.Repository.init("models")                        # doctest: +SKIP
    >>> repo.commit(model.state_dict(), deploy="prod")              # doctest: +SKIP
    >>> repo.checkout(at="2026-11-20T10:00Z", target="prod")        # doctest: +SKIP

``import mvc`` is cheap: neither torch nor numpy is imported before they are needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mvc.errors import MvcError

if TYPE_CHECKING:
    from mvc.adapters.hashing import root_of
    from mvc.api.clone import clone, visit
    from mvc.api.repository import Repository
    from mvc.fleet.follow import follow
    from mvc.maintenance.report import FsckReport
    from mvc.models.environment import Environment
    from mvc.models.models import Architecture
    from mvc.probing.probe import Probe, probe
    from mvc.recipes.making import made
    from mvc.repo.commit.request import CommitOptions
    from mvc.repo.commit.result import CommitResult
    from mvc.repo.deployments import Deployed
    from mvc.repo.history.log import LogEntry
    from mvc.repo.live import Live
    from mvc.requirements import Requirements
    from mvc.serving.follower import Follower
    from mvc.training.recorder import Recorder, Report
    from mvc.training.resume import Loaded, Resumed

    __version__: str

__all__ = [
    "Architecture",
    "CommitOptions",
    "CommitResult",
    "Deployed",
    "Environment",
    "FileOptions",
    "Follower",
    "FsckReport",
    "Live",
    "Loaded",
    "LogEntry",
    "MvcError",
    "Probe",
    "Recorder",
    "Report",
    "Repository",
    "Requirements",
    "Resumed",
    "__version__",
    "clone",
    "follow",
    "made",
    "probe",
    "root_of",
    "visit",
]

_LAZY = {
    "Architecture": "mvc.models.models",
    "CommitOptions": "mvc.repo.commit.request",
    "FileOptions": "mvc.repo.commit.request",
    "CommitResult": "mvc.repo.commit.result",
    "Deployed": "mvc.repo.deployments",
    "Environment": "mvc.models.environment",
    "Follower": "mvc.serving.follower",
    "FsckReport": "mvc.maintenance.report",
    "Loaded": "mvc.training.resume",
    "Live": "mvc.repo.live",
    "LogEntry": "mvc.repo.history.log",
    "Probe": "mvc.probing.probe",
    "Recorder": "mvc.training.recorder",
    "Report": "mvc.training.recorder",
    "Repository": "mvc.api.repository",
    "Requirements": "mvc.requirements",
    "Resumed": "mvc.training.resume",
    "clone": "mvc.api.clone",
    "follow": "mvc.fleet.follow",
    "made": "mvc.recipes.making",
    "probe": "mvc.probing.probe",
    "root_of": "mvc.adapters.hashing",
    "visit": "mvc.api.clone",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    if name == "__version__":
        from mvc.version import installed_version

        return installed_version()
    raise AttributeError(f"module 'mvc' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
