"""The operations on one repository, one verb a module. The public entry to them is ``mvc.api``."""
