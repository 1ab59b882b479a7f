"""Settings of every test run: no deadline per hypothesis example, since machines and first calls differ.

Without a CUDA device Triton interprets its kernels; it must be told before anything imports it.
"""

import os

import torch
from hypothesis import settings

os.environ["COLUMNS"] = "160"  # tables are not cut whatever terminal the tests run in
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

settings.register_profile("sparrow", deadline=None)
settings.load_profile("sparrow")
