"""What all parts use."""

VERSION = "0.1.0"  # Of the whole project; setup.py reads it here.
