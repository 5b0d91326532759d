"""Our own HTTP/1.1 client: light to import, and the one that models, `proxy --stdio` and app libraries use."""
