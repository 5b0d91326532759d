"""The opening answers of each stdio surface, generated from the real server by `make openings`."""
