"""What runs around a compiled program: how it is started without a deadlock, kept on disk, and watched.

Below every room that compiles. It knows nothing of replicas.
"""
