"""What classification.py and the tools stand on: networks, data sets, runs, workers."""
