"""What a version's model is made of: source code, architecture and environment, stored and built.

Only ``stored_code`` runs code out of a repository, and only after the user has said that it may.
How the model was trained is ``recipes``.
"""
