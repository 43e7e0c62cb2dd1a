"""repair: restore data from second copies and other paths; put the rest into quarantine.

``fsck`` finds the damage.
"""
