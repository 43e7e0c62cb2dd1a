"""A folder for each section of ``mvc help --all``, in it one module a command, with ``command``.

Loaded by ``mvc.cli.program`` on demand.
"""
