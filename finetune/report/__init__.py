"""A report: run folders as one page that opens anywhere.

It reads what runs leave behind (design: the run folder) and writes one HTML file without any other:
figures, plots, comparisons, examples with their texts. It trains and scores nothing. What is
missing or damaged is named on the page, and the rest is shown.
"""

from finetune.report.collecting import Problem
from finetune.report.parts import Part
from finetune.report.writing import Report, write_report

__all__ = ["Part", "Problem", "Report", "write_report"]
