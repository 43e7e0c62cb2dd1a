"""Storage on disk: journal, packs of records, index, storage graph.

``store`` opens a repository's folder, ``snapshot`` reads it. The package knows objects and their
hashes; versions and files are known to ``mvc.repo``.
"""
