"""Tests of ethorch.language."""
