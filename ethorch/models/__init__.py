"""Users' models and inputs."""
