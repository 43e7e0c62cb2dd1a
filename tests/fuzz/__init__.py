"""Fuzzing (docs/reliability.md): each target is one function of bytes in ``targets``.

``corpus/TARGET/`` holds inputs that once broke something; they are replayed for ever.
"""
