"""report: the history as one page.

This package only collects figures and draws them. ``mvc.maintenance.stats`` computes the figures of
storage, and ``mvc.repo.diff`` the distances between versions.
"""
