"""Experiments: virtual drift, and what it costs to store every version of it.

``python -m mvc.evaluation --help`` runs them; docs/evaluation.md explains the figures.
``first_change`` is public and finds the version that first labels a sample differently.
"""

from mvc.evaluation.change import Change, first_change

__all__ = ["Change", "first_change"]
