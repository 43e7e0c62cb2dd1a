"""What makes production weights smaller than training weights before they are deployed.

Everything lossy happens here, in memory; what comes out is deployed and stored exactly.
"""
