"""mvc: git for model weights.

    >>> import mvc
    >>> repo = mvc.Repository.init("models")                        # doctest: +SKIP
    >>> repo.commit(model.state_dict(), deploy="prod")              # doctest: +SKIP
    >>> repo.checkout(at="2026-11-20T10:00Z", target="prod")        # doctest: +SKIP

``import mvc`` is fast: torch and numpy are imported only when a call needs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mvc.errors import MvcError
from mvc.faces import face

if TYPE_CHECKING:
    from mvc.adapters.state_file import root_of
    from mvc.api import (
        CommitOptions,
        CommitResult,
        Deployed,
        FileOptions,
        FsckReport,
        Live,
        LogEntry,
        LogOptions,
        Repository,
        clone,
        heal,
        nodes,
        visit,
    )
    from mvc.importing.checkpoints import import_checkpoints
    from mvc.models.environment import Environment
    from mvc.models.export import export_model
    from mvc.models.models import Architecture, describe_model, load_model
    from mvc.pipelines.requirements import Requirements
    from mvc.probing.probe import Probe, probe
    from mvc.recipes.making import constructed
    from mvc.recipes.stepwise.recorder import Recorder
    from mvc.recipes.verbs import record, retrain, retraining
    from mvc.report.change import first_change
    from mvc.report.page import write_report
    from mvc.serving.follower import Follower
    from mvc.serving.sinks import FileSink, ModelSink, ReplicaSink
    from mvc.training.recorder import Report, watch
    from mvc.training.resume import Loaded, Resumed, load, resume

    __version__: str

__all__ = [
    "Architecture",
    "CommitOptions",
    "CommitResult",
    "Deployed",
    "Environment",
    "FileOptions",
    "FileSink",
    "Follower",
    "FsckReport",
    "Live",
    "Loaded",
    "LogEntry",
    "LogOptions",
    "ModelSink",
    "MvcError",
    "Probe",
    "Recorder",
    "ReplicaSink",
    "Report",
    "Repository",
    "Requirements",
    "Resumed",
    "__version__",
    "clone",
    "constructed",
    "describe_model",
    "export_model",
    "first_change",
    "heal",
    "import_checkpoints",
    "load",
    "load_model",
    "nodes",
    "probe",
    "record",
    "resume",
    "retrain",
    "retraining",
    "root_of",
    "visit",
    "watch",
    "write_report",
]

_LAZY = {
    "Architecture": "mvc.models.models",
    "CommitOptions": "mvc.api",
    "FileOptions": "mvc.api",
    "CommitResult": "mvc.api",
    "Deployed": "mvc.api",
    "Environment": "mvc.models.environment",
    "Follower": "mvc.serving.follower",
    "FileSink": "mvc.serving.sinks",
    "ModelSink": "mvc.serving.sinks",
    "ReplicaSink": "mvc.serving.sinks",
    "FsckReport": "mvc.api",
    "Loaded": "mvc.training.resume",
    "Live": "mvc.api",
    "LogEntry": "mvc.api",
    "LogOptions": "mvc.api",
    "Probe": "mvc.probing.probe",
    "Recorder": "mvc.recipes.stepwise.recorder",
    "Report": "mvc.training.recorder",
    "Repository": "mvc.api",
    "Requirements": "mvc.pipelines.requirements",
    "Resumed": "mvc.training.resume",
    "clone": "mvc.api.clone",
    "describe_model": "mvc.models.models",
    "export_model": "mvc.models.export",
    "first_change": "mvc.report.change",
    "heal": "mvc.api",
    "import_checkpoints": "mvc.importing.checkpoints",
    "load": "mvc.training.resume",
    "load_model": "mvc.models.models",
    "constructed": "mvc.recipes.making",
    "nodes": "mvc.api",
    "probe": "mvc.probing.probe",
    "recipes": "mvc.recipes",
    "record": "mvc.recipes.verbs",
    "resume": "mvc.training.resume",
    "retrain": "mvc.recipes.verbs",
    "retraining": "mvc.recipes.verbs",
    "root_of": "mvc.adapters.state_file",
    "visit": "mvc.api",
    "watch": "mvc.training.recorder",
    "write_report": "mvc.report.page",
}

_look_up = face(__name__, _LAZY)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from mvc.version import installed_version

        return installed_version()
    return _look_up(name)


def __dir__() -> list[str]:
    return sorted(__all__)
