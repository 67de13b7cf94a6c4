"""Sources that are not configurations but speak of the run: launch lines, scripts, dependency files."""
