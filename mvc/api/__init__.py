"""The public door: ``Repository`` with its namespaces, and what is built on it alone.

A method looks its arguments up and calls one verb of a floor below; no verb lives here. Floors
below open a repository as users do, by ``mvc.Repository``.
"""
