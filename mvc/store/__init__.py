"""The storage of a repository on disk: journal, packs, index, storage graph.

The journal lists all operations. Packs contain encoded objects, such as the bytes of a tensor. An
object is named by its hash. The index finds entries of the journal by ids and names. The storage
graph finds the records that must be decoded to recover an object. ``store`` opens the folder of a
repository, and ``snapshot`` reads the folder. Versions and files are defined in ``mvc.model``.
"""
