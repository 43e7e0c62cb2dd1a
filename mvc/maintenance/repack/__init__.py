"""repack: store the same versions with other reset points and deltas.

The module ``problem`` reads the stored data and estimates sizes of other deltas. ``solve``
optimises, and ``planner`` chooses a plan for a goal. ``mvc.maintenance.rewrite_plan`` rewrites the
packs.
"""
