"""One traced replica function for many replicas: what varies, what is fused, what is cut by rows."""
