"""DistillSparse: a low-rank adapter that draws the sparse student to the dense policy (arXiv 2606.08446)."""
