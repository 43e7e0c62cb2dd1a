"""One verb a module, on one repository (layer 3). ``repository.py`` is the public entry."""
