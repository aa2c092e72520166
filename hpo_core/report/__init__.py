"""Figures of a study and the one-file HTML report."""

from hpo_core.report.study_page import write_report

__all__ = ["write_report"]
