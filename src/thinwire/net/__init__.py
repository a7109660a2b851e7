"""NET: durable links between organisations over gRPC and mutual TLS, certificates, the handshake, the doctor.

May import base, engine and storage.
"""
