"""The experiments of VSOL's thesis on virtual drift.

Data sets and networks: ``mvc.evaluation.common``.
"""
