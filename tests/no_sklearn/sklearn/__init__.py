"""Hides scikit-learn from the processes that tests start: Keras imports it wherever it is installed, which takes a second."""

raise ImportError("the programs of tests do without scikit-learn; ask for the fixture `with_sklearn` where one needs it")
