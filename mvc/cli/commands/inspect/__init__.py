"""Commands that inspect, check and compare versions."""
