"""The papers' experiments, run again with bytes counted on the wire, and their claims checked."""
