"""What is asked of XLA's CPU client as a whole: its memory, its threads and its options."""
