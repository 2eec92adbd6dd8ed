"""Generate C projects that run programs without Python, and emulate boards that run these projects."""
