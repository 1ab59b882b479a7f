"""Changes of rewards before advantages are computed."""
