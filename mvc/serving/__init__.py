"""Serving: a Follower of a target's live version, sinks for versions, and a reader of weights.

``mvc.lossy`` makes production weights; ``mvc.repo.statements.live`` determines the live version.
"""
