"""Writing new keys and values into their pages, and finding the pages this filled."""
