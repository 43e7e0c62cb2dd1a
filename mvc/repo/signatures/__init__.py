"""What a signature of a version or a deployment signs, and signing it while it is recorded.

The signatures lie in the journal (``model/statement``), ``io/ssh_keygen`` makes and checks
them, and ``repo/verification`` says who vouches for what.
"""
