"""The full state of a training: parameters, optimizers, random generators.

Recording it: ``mvc.training.recorder``.
"""
