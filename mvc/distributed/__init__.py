"""Training one model at several sites that talk only when the model has moved (layer 4).

Here: the protocols (pure state machines), the codecs of what they send, the simulator in one
process and the runner over torch.distributed. Not here: how versions are stored (``repo``).
"""
