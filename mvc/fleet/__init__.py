"""A fleet: nodes follow what is live on a target of a remote, and report what they serve.

What the remote answers them belongs to ``mvc.remote`` and ``mvc.server``.
"""
