"""Jobs that other systems start: Ray, Slurm, Kubernetes and its operators, Vertex AI, SageMaker and MPI.

_options.py says which engines there are, and what each of them can use. _job.py has a job, checked; _jobs.py prints or submits it,
with a file for each kind of system. _ray.py runs it now.
"""
