"""Reports: one file per format, each a pure function from a :class:`~accumlint.report.model.Report` to text."""
