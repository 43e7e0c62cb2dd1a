"""What changes how versions are stored, or checks it: gc, forget, repack, fsck, repair.

``inventory`` is what is stored, ``storage_graph`` how it hangs together, ``rewrite_plan`` how it is
changed. Nothing here changes what a version is.
"""
