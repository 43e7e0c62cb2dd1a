"""Solvers of the repack problem: exact on chains and trees, heuristics on graphs.

What is solved: ``mvc.maintenance.repack.problem``.
"""
