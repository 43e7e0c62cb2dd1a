"""What the full state of a training is: parameters, optimizers, component types, random generators.

Recording it: ``mvc.training.recorder``. Setting a training back to it: ``mvc.training.resume``.
"""
