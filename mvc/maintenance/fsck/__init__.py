"""fsck: read every byte and name the damage. ``repair`` repairs it."""
