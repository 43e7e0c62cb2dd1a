"""gc: deleting what nothing reaches.

What is reached: ``mvc.repo.maintenance.reachable``.
Forgetting states: ``retention``.
"""
