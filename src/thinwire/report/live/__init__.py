"""The live page: runs as they go, and as they went. Needs the extra `dashboard`."""
