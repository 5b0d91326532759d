"""What agents may use in the gateway, through a real one."""
