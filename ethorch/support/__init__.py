"""What every package uses: errors, native code, progress, tables, files, processes."""
