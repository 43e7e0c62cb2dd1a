"""The only package that touches the operating system (layer 1): files, locks, clock, process."""
