"""Which values of a config are secret, and where each secret goes. Pure."""
