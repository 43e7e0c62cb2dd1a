"""Versions out of a running training (Recorder), and a training set back to one (resume).

Its modules import torch. What training states hold: ``state``. Lossy pipelines: ``lossy``.
"""
