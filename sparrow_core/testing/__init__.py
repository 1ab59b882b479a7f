"""What tests of policies, backends and plugins share."""
