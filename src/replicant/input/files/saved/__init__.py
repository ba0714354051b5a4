"""Datasets that ``save``, ``snapshot`` and ``cache`` have written."""
