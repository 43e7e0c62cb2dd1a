"""Where versions come from: source code, environment, and how a version can be made again.

What belongs here reads a live training or model, or builds one from what is stored. Only
``stored_code`` runs code out of a repository, and only after the user has said that it may.
"""
