"""The operations on one repository, one module for each. Programs call them by ``mvc.api``."""
