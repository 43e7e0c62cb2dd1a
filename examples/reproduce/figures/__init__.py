"""Which figure of which page comes from which result.

One module for each experiment, and one for the benchmarks. Here belong phrases, and the values that
their numbers are rounded from; how pages are read is ``check``'s.
"""
