"""The agent side of durable memory: capture, journal, dispatch, recall. Importing it loads nothing else.

Hosts import what they use by module (`from producer.memory import AgentMemory`); this file stays empty so that a
hook process pays for the standard library alone.
"""
