"""What gc, fsck, repair, repack and stats share: what is stored, and how it is rewritten.

Each of them has a folder of its own.
"""
