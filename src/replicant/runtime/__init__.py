"""What surrounds a compiled program: it is started without a deadlock, kept on disk, and watched.

Everything that compiles uses this folder, which itself knows nothing about replicas.
"""
