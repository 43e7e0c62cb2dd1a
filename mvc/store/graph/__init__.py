"""The storage graph: finds the records to decode for an object, and estimates the decoding time.

``mvc.store.recovery`` decodes these records.
"""
