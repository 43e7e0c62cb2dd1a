"""One folder for each section of ``mvc help --all``, with one module for each command."""
