"""Which checkpoints are kept, and when a job that is asked to end saves one."""
