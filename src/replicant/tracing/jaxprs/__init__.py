"""Jaxprs as such: marks, graphs, names and fingerprints."""
