"""Measuring what a launch costs by its width, and keeping it for the controller."""
