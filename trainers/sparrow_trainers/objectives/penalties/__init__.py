"""Terms added to the policy loss."""
