"""Production weights out of training weights, in memory; what comes out is stored exactly."""
