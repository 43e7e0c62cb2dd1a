"""The server of ``mvc serve``: repositories over https, a socket or ssh's pipes.

It has authentication and permissions; ``mvc.remote`` has the transfers.
"""
