"""The full state of a training: parameters, optimizers, component types, random generators.

``mvc.training.recorder`` records it; ``mvc.training.resume`` restores it.
"""
