"""Transports: through a folder, https, ssh and buckets."""
