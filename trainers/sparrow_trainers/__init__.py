"""Trainers on torchtitan."""
