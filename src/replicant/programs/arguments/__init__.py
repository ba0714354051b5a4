"""The arguments and results of a function, as its program takes and gives them."""
