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
    from mvc.repo.repository import CommitResult, Repository
    from mvc.requirements import Requirements
    from mvc.training.recorder import Recorder

__all__ = ["CommitResult", "MvcError", "Recorder", "Repository", "Requirements", "__version__"]
__version__ = "0.1.0"

_LAZY = {
    "CommitResult": "mvc.repo.repository",
    "Recorder": "mvc.training.recorder",
    "Repository": "mvc.repo.repository",
    "Requirements": "mvc.requirements",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'mvc' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
