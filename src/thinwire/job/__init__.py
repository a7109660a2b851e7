"""JOB: what a user asks for: the job file, its checks, one party's view of it, and the wizard that writes one.

May import every floor up to data.
"""
