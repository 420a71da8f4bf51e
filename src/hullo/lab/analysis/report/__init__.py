"""The report: all records in one interactive HTML file that works offline."""

from hullo.lab.analysis.report.gather import gather
from hullo.lab.analysis.report.page import write_page

__all__ = ["gather", "write_page"]
