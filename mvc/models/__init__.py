"""Records the code, architecture and environment of a version, and builds the version's model.

Only ``stored_code`` runs code from a repository, and only if the user has trusted the code.
``mvc.recipes`` records the training.
"""
