"""Bytes nobody would send, in both directions: no 5xx of ours, no hang, nothing left in the books.

Each kind runs in the default suite with the same few examples every time, and with many more and
others each time among the slow tests.
"""
