"""The command line ``mvc``. The operations that commands run are in ``mvc.api``.

``main`` maps results to exit codes. ``program`` finds commands. ``commands/`` has one module for
each command. ``payload`` turns structs into JSON. The rest of the modules print results.
"""
