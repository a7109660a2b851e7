"""Certificates: a private authority, the parties' credentials, and signatures under them."""
