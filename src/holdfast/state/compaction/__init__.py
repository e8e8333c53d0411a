"""Compaction: several runs become one that says the same, so that few have to be looked through.

`policy` decides what to merge, `merge` does it, `plan` describes both ends and swaps the result into a version.
"""
