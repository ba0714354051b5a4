"""What becomes of TensorFlow's names, by area."""
