"""Reports of a run, made from its journal: JUnit XML and an HTML page."""
