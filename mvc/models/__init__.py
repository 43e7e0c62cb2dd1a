"""A version's source code, architecture and environment: recording them, and building the model.

Only ``stored_code`` runs code from a repository, and only if the user has trusted it. ``recipes``
records the training.
"""
