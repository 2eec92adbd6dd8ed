"""Reports: what became of a model, as plain data and as text."""
