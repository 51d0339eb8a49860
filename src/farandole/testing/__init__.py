"""Contract suites: every engine, strategy and network runs the same checks as its kind."""
