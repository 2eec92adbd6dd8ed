"""Program reports in text, tables, Markdown and HTML, rendered from the data of ``Program.to_json``."""
