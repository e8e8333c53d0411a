"""Ids, time, key groups, options and other things that everything else stands on."""
