"""Pure values: tensor, state, Merkle tree, manifest, commit. These modules do no I/O."""
