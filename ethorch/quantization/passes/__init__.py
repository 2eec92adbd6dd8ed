"""Graph passes between ``torch.export`` and annotation; ``pipeline`` lists them."""
