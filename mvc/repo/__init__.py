"""The operations on one repository, one module for each. Programs use ``mvc.api`` instead."""
