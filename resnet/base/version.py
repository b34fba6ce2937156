"""The version of the whole project, which setup.py reads here."""

VERSION = "0.1.0"
