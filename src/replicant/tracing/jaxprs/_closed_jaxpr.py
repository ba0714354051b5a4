"""The type of a jaxpr with its constants. Since JAX 0.12, all jaxprs are of that type, and the old name is no longer exported."""

import jax.extend.core as jex

ClosedJaxpr = jex.ClosedJaxpr  # pyright: ignore[reportPrivateImportUsage]
