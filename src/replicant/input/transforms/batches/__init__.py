"""Transforms that put several elements together: batches, windows, groups and packed rows."""
