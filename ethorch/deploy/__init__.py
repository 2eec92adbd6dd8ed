"""What runs a program outside of Python: C projects, and virtual boards that run them."""
