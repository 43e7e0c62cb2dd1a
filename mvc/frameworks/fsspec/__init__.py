"""``mvc://`` paths for fsspec: plain files.

``mvc.frameworks.dcp`` is for torch.distributed.checkpoint.
"""
