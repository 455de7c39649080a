"""The decision core: from the messages of a conversation to a state, a model and guidance.

Pure: no clock, randomness or network, and no files but the data shipped with it. It imports
`gateway.wire` and the standard library.
"""
