"""``mvc://`` paths for fsspec, and torch.distributed.checkpoint through them.

Other frameworks: their own folders.
"""
