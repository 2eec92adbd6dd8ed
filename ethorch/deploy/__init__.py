"""Run programs outside of Python: C projects, and virtual boards for them."""
