"""Production weights while training: reduction, skipped versions (DSED), drift detection.

The reduction itself: ``mvc.repo.lossy``. Handing the weights to the process that serves:
``mvc.serving``.
"""
