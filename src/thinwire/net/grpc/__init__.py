"""gRPC as we use it: the service table with its authorisation, the server, and the client that dials."""
