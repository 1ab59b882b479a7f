import pytest
import torch


@pytest.fixture
def device() -> torch.device:
    """CUDA where there is one, so that kernels run compiled; else the CPU, where they are interpreted."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
