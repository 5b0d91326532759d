"""The guest room: sessions of apps that lend their tools, and the bridges their calls go over."""
