"""The working folder: tracked paths, ignored paths, status, identification of files.

``mvc.repo.checkout`` writes files.
"""
