"""Scores of logical pages, from landmarks or from the keys themselves."""
