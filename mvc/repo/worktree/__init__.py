"""The working folder: tracked paths, ignored paths, status, which version a file is.

Writing into it: ``checkout``.
"""
