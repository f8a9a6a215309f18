"""How fast topics take messages, and how fast they give them out.

Left to others: what the rates are (`actors.policies`), and when something passes (`actors.topics`).
"""
