"""Statements: deployments, rollbacks, retractions, annotations and signatures."""
