"""What the callbacks of several frameworks share.

One framework alone: its own folder.
"""
