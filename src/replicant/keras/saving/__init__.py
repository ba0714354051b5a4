"""How models, layers and their checkpoints are saved and loaded."""
