"""One folder per op: a readable torch version in naive.py beside each fast kernel."""
