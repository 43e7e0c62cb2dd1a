"""Transports: by folder, https, ssh and buckets."""
