"""The experiment of MMlib's thesis: ten models derived from one another, kept in several ways.

Data sets, progress, results and tables: ``mvc.evaluation.common``.
"""
