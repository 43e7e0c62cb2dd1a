"""The experiments of the works that mvc unites, run on mvc itself."""
