"""``mvc://`` paths for fsspec: plain files.

For torch.distributed.checkpoint see ``mvc.frameworks.dcp``.
"""
