"""The cells, by format."""
