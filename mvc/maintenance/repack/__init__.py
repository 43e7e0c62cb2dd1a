"""repack: store the same versions with other reset points and deltas.

The module ``problem`` reads and estimates, ``solve`` optimises, ``planner`` chooses a plan for a
goal, and ``mvc.maintenance.rewrite_plan`` rewrites the packs.
"""
