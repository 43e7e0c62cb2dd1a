"""What changes how versions are stored, or checks it: gc, forget, repack, fsck, repair.

``graph`` is what is stored and how it hangs together, ``collect`` a plan over it, ``rewrite_plan``
how plans are executed. Nothing here changes what a version is.
"""
