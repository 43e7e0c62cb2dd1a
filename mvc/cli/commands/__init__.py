"""One command a module; each defines ``command``. Loaded by ``mvc.cli.program`` on demand."""
