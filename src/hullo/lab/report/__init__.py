"""The page: everything that records tell, in one HTML file that opens anywhere, offline."""

from hullo.lab.report.gather import gather
from hullo.lab.report.page import write_page

__all__ = ["gather", "write_page"]
