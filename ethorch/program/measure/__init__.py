"""Measure a program: accuracy, budgets, comparison with the model, profiles."""
