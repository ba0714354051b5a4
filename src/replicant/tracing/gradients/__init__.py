"""The paths of gradients through a traced function."""
