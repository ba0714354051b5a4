"""Who takes part in a job, as its launcher or its platform tells: one file for each."""
