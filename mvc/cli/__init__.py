"""The command line ``mvc``: what a user types and reads. What it does is in ``mvc.api``.

``main`` turns endings into exit codes, ``program`` finds commands, ``commands/`` has one
module for each, whose ``options`` are a struct; ``payload`` makes JSON of structs; the rest is how
things are shown.
"""
