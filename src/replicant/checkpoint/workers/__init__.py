"""What the workers of a job do together when they save or restore."""
