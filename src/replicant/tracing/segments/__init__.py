"""Long programs in segments, each compiled by itself."""
