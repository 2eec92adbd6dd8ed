"""Load user models and their inputs."""
