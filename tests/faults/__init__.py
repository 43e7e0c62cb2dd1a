"""Twins of ``mvc.io.files.FileSystem`` that record, fail or lose power; a clock that is set."""
