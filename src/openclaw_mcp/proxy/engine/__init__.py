"""Sessions of apps, their bridges and calls: in memory, or shared through Redis."""
