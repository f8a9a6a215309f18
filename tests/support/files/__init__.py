"""File systems in memory that fail, lose what was not synced, and damage what they hold."""
