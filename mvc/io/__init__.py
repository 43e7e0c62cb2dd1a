"""The only package that calls the operating system (layer 1): files, locks, clock, process."""
