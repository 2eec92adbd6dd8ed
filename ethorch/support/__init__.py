"""Common utilities: errors, native code, progress, tables, files, processes."""
