"""Magnetar."""
