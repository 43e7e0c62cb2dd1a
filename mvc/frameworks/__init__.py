"""Integrations with other frameworks, one package each; each is imported only when it is used."""
