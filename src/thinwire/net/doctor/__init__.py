"""Checks of the way between parties before a run: certificates, ports, proxies, TLS, and what the link carries."""
