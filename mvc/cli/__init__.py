"""The command line ``mvc``; the operations themselves are in ``mvc.api``.

``main`` maps results to exit codes, ``program`` finds commands, ``commands/`` has one module for
each command, ``payload`` writes structs as JSON; the other modules print results.
"""
