"""The planner of whole versions that repack had before: an oracle for the one over contents.

How a layout is chosen is its own: the solvers (``exact``, ``bounded``, ``priced``), its prices of
versions and contents, its trials, and the codings of a layout. Some of that is the same code as in
``mvc.maintenance.repack``, which may change: the oracle stays. Values, what is stored, the metrics
and the price of a plan, and the chains that settings name are taken from there.
"""
