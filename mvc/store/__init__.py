"""Storage on disk: journal, packs of records, index, storage graph (layer 2).

``store`` opens a repository's folder, ``snapshot`` queries it. The meaning of versions and files is
the business of ``repo``.
"""
