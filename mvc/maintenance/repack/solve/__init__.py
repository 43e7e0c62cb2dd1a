"""The solver of ``repack``: pure functions over a graph of contents. No repository, no files.

``graph``: the problem's costs. ``tree``: the exact solution of one tree. ``priced``: of all trees.
"""
