"""Measurements of the tier in a file, which the processes of one machine share."""
