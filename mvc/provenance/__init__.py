"""How a version came to be, and whether it can be made again.

Built on ``training``, from which it takes the state of the random generators.
"""
