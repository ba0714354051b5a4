"""When a program must be traced again: what a trace has read, and whether that has changed."""
