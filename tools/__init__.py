"""Scripts that write the generated pages of the documentation."""
