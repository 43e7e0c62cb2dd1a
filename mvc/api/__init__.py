"""The public door: ``Repository`` with its namespaces, and what is built on it alone.

A method looks its arguments up and calls one verb of a lower row; no verb lives here. Lower rows
open a repository as users do, by ``mvc.Repository``.
"""
