"""Training is killed, and a lossy checkpoint brings it back: what the work done again costs.

The experiments of the LC-Checkpoint paper: LC, SCAR, TOPN and full checkpoints on the same runs.
"""
