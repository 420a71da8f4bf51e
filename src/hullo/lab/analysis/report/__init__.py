"""The page: everything that records tell, in one HTML file that opens anywhere, offline."""

from hullo.lab.analysis.report.gather import gather
from hullo.lab.analysis.report.page import write_page

__all__ = ["gather", "write_page"]
