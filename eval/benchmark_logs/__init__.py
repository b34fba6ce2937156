"""Logs of a run in the formats of DAWNBench and MLPerf."""
