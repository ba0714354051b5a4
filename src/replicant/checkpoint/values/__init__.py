"""Objects as the values that a checkpoint holds, and back."""
