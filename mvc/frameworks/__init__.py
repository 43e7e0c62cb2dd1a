"""Integrations with frameworks, one package each. A package is imported only when used."""
