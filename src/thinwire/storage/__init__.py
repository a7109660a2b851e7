"""STORAGE: the run folder: its layout, one atomic writer, checkpoints, retention and encryption at rest.

May import base and engine.
"""
