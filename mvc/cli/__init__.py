"""The command line ``mvc`` (layer 5): the only code that prints, reads the environment or exits.

``main`` turns endings into exit codes, ``program`` finds commands, ``commands/`` has one
file for each, whose ``options`` are a struct; ``payload`` makes JSON of structs; the rest is how
things are shown.
"""
