"""Storage on disk: journal, packs, index, storage graph.

The journal lists all operations. Packs contain objects (the bytes of tensors, for example, named by
hash), encoded in records. The index finds entries of the journal by ids and names. The storage
graph finds the records that lead to an object. ``store`` opens a repository's folder, ``snapshot``
reads it. Versions and files are known only to ``mvc.repo``.
"""
