"""forget: states given up by name or by rule, and what that frees.

Deleting their bytes: ``gc``.
"""
