"""Protocols as pure state machines: a coordinator and a worker each (numpy only).

``named`` makes them by name. Neither side does I/O or knows a clock: the simulator and the real
runner pass their messages.
"""
