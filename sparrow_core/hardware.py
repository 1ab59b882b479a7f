"""Peak rates and memory of machines by name: what byte floors, cost models and memory plans start from."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, PositiveFloat, PositiveInt


class Hardware(BaseModel):
    """Peak rates of one device. Peaks are not reached; ``copy_bandwidth`` is what a large copy was seen to reach."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    flops: PositiveFloat
    """Dense bf16 FLOP/s (datasheets often print twice that, for structured sparsity)."""
    bandwidth: PositiveFloat
    """Memory bytes/s of the datasheet."""
    copy_bandwidth: PositiveFloat | None = None
    """Measured bytes/s of a large device-to-device copy, bytes read plus bytes written; None where not measured."""
    memory: PositiveInt | None = None
    """Device memory in bytes as the datasheet counts it; a driver may report a little more or less."""

    @property
    def flops_per_byte(self) -> float:
        """I: FLOPs the device can do while it reads one byte."""
        return self.flops / self.bandwidth

    @property
    def floor_bandwidth(self) -> float:
        """Bytes/s that byte floors divide by: the measured copy where there is one, else the datasheet's."""
        return self.bandwidth if self.copy_bandwidth is None else self.copy_bandwidth


HARDWARE: dict[str, Hardware] = {
    # NVIDIA datasheets, one GPU: A100 80 GB SXM, H100 SXM, H200 SXM, B200 (a GPU of a DGX B200).
    "a100": Hardware(flops=312e12, bandwidth=2.039e12, memory=80_000_000_000),
    "h100": Hardware(flops=989e12, bandwidth=3.35e12, memory=80_000_000_000),
    # The copy: benchmarks/results/kernels-h200.json.
    "h200": Hardware(flops=989e12, bandwidth=4.8e12, copy_bandwidth=4.3e12, memory=141_000_000_000),
    "b200": Hardware(flops=2250e12, bandwidth=8.0e12, memory=180_000_000_000),
    # One Xeon Platinum 8480+ socket: 56 cores x 2048 bf16 FLOPs a cycle (AMX) x 2.0 GHz; 8 channels of DDR5-4800.
    "cpu": Hardware(flops=229e12, bandwidth=307e9),
}


def hardware_named(device_name: str) -> str | None:
    """The table's name of a device as its driver reports it (``NVIDIA H200``), or None."""
    words = device_name.lower().replace("-", " ").split()
    return next((name for name in HARDWARE if name != "cpu" and name in words), None)
