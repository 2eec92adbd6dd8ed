"""Data sets, files and folders as inputs of a model."""
