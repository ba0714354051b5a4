"""How a compiled program is started: in which thread, in how many parts, and the same on all workers."""
