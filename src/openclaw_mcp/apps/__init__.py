"""For app builders: client libraries (Python here, JavaScript in client.js) that lend an app's functions as tools."""
