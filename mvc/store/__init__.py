"""What lies on disk: journal, packs of records, index, storage graph (layer 2).

Opening a repository's folder: ``store``. Asking what it holds: ``snapshot``. What versions and
files mean is not known here: that is ``repo``.
"""
