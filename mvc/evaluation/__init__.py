"""The experiments of the seeds, run again: virtual drift, and what it costs to keep it all.

``python -m mvc.evaluation --help`` runs them; docs/evaluation.md says what the figures mean.
``first_change`` is of use outside of experiments too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mvc.evaluation.change import Change, first_change

__all__ = ["Change", "first_change"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from importlib import import_module

        return getattr(import_module("mvc.evaluation.change"), name)
    raise AttributeError(f"module 'mvc.evaluation' has no attribute {name!r}")
