"""A file or a folder that is synchronized with the live version of a remote target."""
