"""report: the history as one page.

Only gathers and draws: figures of storage come from ``mvc.maintenance.stats``, distances from
``mvc.repo.diff``.
"""
