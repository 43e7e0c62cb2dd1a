"""A process that answers for repositories: ``mvc serve``, by https, a socket or ssh's pipes.

Who may do what belongs here; what a transfer is does not (``mvc.remote``).
"""
