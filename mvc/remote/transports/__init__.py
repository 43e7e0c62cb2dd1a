"""The transports: through a folder, https, ssh and buckets."""
