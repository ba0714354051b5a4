"""``strategy.run`` inside of a trace: one replica function, computed by every replica."""
