"""The protocols, as pure state machines. Each has a coordinator and a worker (numpy only).

``named`` creates both by the name of a protocol. Coordinator and worker do no I/O and have no
clock. The simulator and the runner deliver the messages between coordinator and workers.
"""
