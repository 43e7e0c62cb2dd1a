"""The working folder: tracked paths, ignored paths, status, identification of files.

Writing files: ``mvc.repo.checkout``.
"""
