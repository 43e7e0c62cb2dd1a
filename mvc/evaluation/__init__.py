"""Experiments: virtual drift, and what it costs to store every version of it.

``python -m mvc.evaluation --help`` runs them; docs/evaluation.md explains the figures.
``first_change`` is public and finds the version that first labels a sample differently.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mvc.evaluation.change import Change, first_change

__all__ = ["Change", "first_change"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from mvc.evaluation import change

        return getattr(change, name)
    raise AttributeError(f"module 'mvc.evaluation' has no attribute {name!r}")
