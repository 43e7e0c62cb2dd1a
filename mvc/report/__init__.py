"""report: the history as one page.

This package only collects and draws. Storage figures come from ``mvc.maintenance.stats``, distances
from ``mvc.repo.diff``.
"""
