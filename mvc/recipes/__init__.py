"""Trainings that can be run again: recipes, data sets, replays, weights given up for them.

Recipes rest on ``models``, which says what builds a model. What only compares two runs of a model
is ``probe``.
"""
