"""On-line scores: the label party answers HTTP and gRPC, feature parties answer it. Needs the extra `serve`."""
