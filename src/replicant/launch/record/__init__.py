"""What happens in a job, as it is written down, and what that says about its time."""
