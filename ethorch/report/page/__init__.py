"""The report: one HTML page with tables and charts, from plain data."""

from ethorch.report.page.page import page

__all__ = ["page"]
