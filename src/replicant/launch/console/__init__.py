"""What the supervisor shows and hears: logs, signals and the clock."""
