"""Workers of libraries that tell a task its place by their own functions, not by variables: Ray Train, Spark and Dask.

Whoever runs in such a worker has imported its library, so nothing is imported here.
"""
