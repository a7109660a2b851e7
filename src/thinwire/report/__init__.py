"""REPORT: what a person looks at: a run's record, its HTML page, its charts, and the live page.

May import every floor up to job.
"""
