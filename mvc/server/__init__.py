"""The server of ``mvc serve``: serves repositories over https, a Unix socket, or the pipes of ssh.

This package has the authentication and the permissions. The transfers are in ``mvc.remote``.
"""
