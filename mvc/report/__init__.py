"""report and plot: the history as one page to look at, and as charts on one time axis.

Only gathers and draws: figures of storage come from ``mvc.report.stats``, distances from
``mvc.repo.diff``.
"""
