"""mvc in other people's frameworks: a module each, and nothing is imported before it is named."""
