"""A run of several processes over TCP (layer 4).

Here: the link between two processes, the coordinator's process, the object that a training
script holds, and the command that starts and restarts them. Not here: what is sent, and when
(``mvc.distributed.protocols``). Only this package imports ``torch.distributed``.
"""
