"""Workers meet before JAX connects them, and learn whether they form one group."""
