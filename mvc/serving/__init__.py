"""Serving: a Follower (follows the live version of a target), sinks (what a Follower writes to),
and a reader of weights.

``mvc.lossy`` makes production weights. ``mvc.repo.statements.live`` determines the live version.
"""
