"""Integrations with frameworks, one package each. A package is imported when it is first used."""
