"""Shards of samples: MDS and tar."""
