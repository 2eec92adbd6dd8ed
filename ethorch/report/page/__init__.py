"""The report about a program: one HTML page with tables and charts."""

from ethorch.report.page.page import page

__all__ = ["page"]
