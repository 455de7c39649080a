"""From chat messages to steps: what an agent thought, called and got back, in any protocol.

Reading never raises, whatever a client sends. May import `gateway.wire` and no other package of the
decision core.
"""
