"""Experiments: virtual drift, models derived from one another, trainings that die; what it costs.

``python -m mvc.evaluation --help`` runs them; docs/evaluation.md, docs/mmlib.md and docs/rework.md
explain them.
``first_change`` is public and finds the version that first labels a sample differently.
"""

from mvc.evaluation.change import Change, first_change

__all__ = ["Change", "first_change"]
