"""Contract suites: every engine and every strategy runs the same checks as its kind."""
