"""report: the history as one page.

It only collects and draws: storage figures come from ``mvc.maintenance.stats``, distances from
``mvc.repo.diff``.
"""
