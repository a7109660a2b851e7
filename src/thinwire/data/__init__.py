"""DATA: tables in: readers for a party's own files, and the preparation that makes them numbers.

May import base, engine, storage, net and align.
"""
