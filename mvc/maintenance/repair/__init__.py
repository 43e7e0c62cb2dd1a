"""repair: restore data from second copies and other paths; put damaged bytes into quarantine.

``mvc.maintenance.fsck`` finds the damage.
"""
