"""Where versions come from: source code, environment, recipes, and whether they can be made again.

What belongs here reads a live training or model, or builds one from what is stored. Only
``stored_code`` runs code out of a repository, and only after the user has said that it may.
It stands above ``training``, from which it takes the states of optimizers and random generators.
"""
