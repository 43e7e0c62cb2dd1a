"""The operation log, and undo. ``mvc.store.journal`` reads and writes journal entries."""
