"""A file or a folder that is kept equal to what is live on a target of a remote."""
