"""The only package that calls the operating system: files, locks, clock, process."""
