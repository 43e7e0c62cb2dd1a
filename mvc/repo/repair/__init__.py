"""repair: healing what a second copy or path allows; the rest goes into quarantine.

Finding damage: ``fsck``.
"""
