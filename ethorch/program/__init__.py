"""A model as a program in one call, and everything one may ask of it."""
