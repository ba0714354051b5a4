"""The workers of a job: how they are started, watched, and started again."""
