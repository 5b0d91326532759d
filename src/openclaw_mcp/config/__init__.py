"""The blueprint: the config file, its schema, its changes."""
