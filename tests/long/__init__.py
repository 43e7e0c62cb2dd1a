"""The long suite in one command: ``python -m tests.long`` (docs/reliability.md).

``plan``: which tests there are, what they cost, how they are cut into parts. ``plugin``: runs
the chosen ones, the longest first, and notes each that has passed. ``report``: the counters of
those that have passed.
"""
