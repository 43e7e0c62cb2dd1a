"""Optimizers of a version: which tensors are states of which weights, and the hyperparameters of a
step.

Everything is read from the structure of a file; no class is looked up. This package finds
optimizers, and pairs them with weights and with the previous version. Formulas are in
``mvc.codecs.optim``.
"""
