"""repack: the same versions with other reset points and deltas. Goal, problem, plan.

The solvers: ``solve``. Rewriting packs: ``maintenance``.
"""
