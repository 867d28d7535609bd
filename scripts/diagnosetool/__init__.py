"""Reads a torch profiler trace of an sglang server and finds the cast of the whole KV pool."""
