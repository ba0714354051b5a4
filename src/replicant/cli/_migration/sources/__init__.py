"""The files to translate: scripts, notebooks and pages, each read in a process of its own."""
