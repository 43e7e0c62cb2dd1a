"""Finds the optimizers of a version: the weights of each state, and the hyperparameters of a step.

Everything is read from the structure of a file. No class that the file names is looked up. Each
optimizer is paired with its weights, and with the same optimizer in the previous version. The
formulas of optimizers are in ``mvc.codecs.optim``.
"""
