"""Connections between processes that may be anybody's: lines of JSON, proofs and seals."""
