"""Check and count the prose and the names of ethorch: ``python -m tools.prose``."""
