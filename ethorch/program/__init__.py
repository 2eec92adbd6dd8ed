"""Compile a model, and measure, explain and save the program."""
