"""The server of ``mvc serve``: serves repositories over https, a Unix socket, or the pipes of ssh.

This package has authentication and permissions. ``mvc.remote`` has the transfers.
"""
