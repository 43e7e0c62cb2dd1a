"""Finds optimizer states in the files of a version, so that a commit can predict new weights.

Each optimizer is paired with its weights, and with the same optimizer in the previous version.
``mvc.codecs.optim`` predicts the new weights by the formulas of optimizers. Files are only parsed:
no class that a file names is imported.
"""
