"""Compile public networks that ethorch was not tuned for, and measure delegates, exactness and accuracy."""
