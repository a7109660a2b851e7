"""Readers: a party's own file as float32 features [N, ...] or labels [N]."""
