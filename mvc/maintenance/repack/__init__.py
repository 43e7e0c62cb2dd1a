"""repack: store the same versions with other reset points and deltas.

``problem`` reads and estimates, ``solve`` optimises, ``planner`` chooses a plan for a goal;
``mvc.maintenance.rewrite_plan`` rewrites the packs.
"""
