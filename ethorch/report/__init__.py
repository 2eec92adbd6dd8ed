"""Reports of programs as text, tables, Markdown and HTML, rendered from plain data."""
