"""What a process serves: a Follower of what is live on a target, a sink and a reader of weights.

Deciding what production weights are: ``mvc.lossy``. What is live: ``mvc.repo.statements.live``.
"""
