"""repair: restoring what a second copy or path gives back; the rest is put into quarantine.

Finding damage: ``fsck``.
"""
