"""A file system that loses power, two runs in a given order, and the tests of all twins."""
