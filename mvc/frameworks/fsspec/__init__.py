"""``mvc://`` paths for fsspec: plain files.

torch.distributed.checkpoint: ``mvc.frameworks.dcp``. Other frameworks: their own folders.
"""
