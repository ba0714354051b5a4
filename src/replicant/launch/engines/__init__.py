"""Jobs that other systems start: Ray, Slurm, Kubernetes and MPI."""
