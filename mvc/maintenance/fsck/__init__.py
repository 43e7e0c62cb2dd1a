"""fsck: every byte is read, damage is named.

Healing it: ``repair``.
"""
