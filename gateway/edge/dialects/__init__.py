"""edge/dialects"""
