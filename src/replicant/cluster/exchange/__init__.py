"""Small exchanges between the workers that train together, and what became of each worker."""
