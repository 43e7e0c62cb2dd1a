"""What a version holds of optimizers: which tensors are the states of which weights, and by which
numbers a step was made.

Everything is read from the structure that a file has beside its tensors; no name of a class is
looked up. Belongs here: finding optimizers, pairing them with weights and with the version before.
Does not: the formulas (``mvc.codecs.optim``) and storing.
"""
