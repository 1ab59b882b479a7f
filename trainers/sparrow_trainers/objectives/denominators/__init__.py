"""What the summed loss is divided by."""
