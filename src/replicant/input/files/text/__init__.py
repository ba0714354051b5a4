"""Text: lines, CSV and JSON Lines."""
