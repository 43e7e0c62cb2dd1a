"""repair: restore data from second copies and other paths; put the rest into quarantine.

``mvc.maintenance.fsck`` finds the damage.
"""
