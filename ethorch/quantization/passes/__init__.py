"""Graph passes between ``torch.export`` and annotation, listed in ``pipeline``."""
