"""Files of numbers that lie one behind the other: arrays of NumPy, and token ids."""
