"""Pure values: tensor, state, Merkle tree, manifest, commit. No I/O (layer 1)."""
