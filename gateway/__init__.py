"""kvgate: admission control in front of SGLang."""
