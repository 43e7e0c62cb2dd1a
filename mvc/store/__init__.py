"""What lies on disk: journal, packs of records, index, storage graph (layer 2)."""
