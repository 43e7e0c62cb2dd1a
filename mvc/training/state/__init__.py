"""The full state of a training: parameters, optimizers, component types, random generators.

``mvc.training.recorder`` records this state, and ``mvc.training.resume`` restores it.
"""
