"""Experiments: virtual drift, and models derived from one another; what their versions cost.

``python -m mvc.evaluation --help`` runs them; docs/evaluation.md and docs/mmlib.md explain them.
``first_change`` is public and finds the version that first labels a sample differently.
"""

from mvc.evaluation.change import Change, first_change

__all__ = ["Change", "first_change"]
