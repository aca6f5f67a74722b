"""Before the server starts, and before it is trusted: the memory it has, and what its arguments mean.

Theory of operation. `chain` is the sum an SGLang start does, turned around so that people can do it
beforehand: free memory × fraction, less weights, less state, divided by the bytes of a token, is the
KV pool; what the fraction leaves is the room in which a prefill must live. `model` reads the bytes
of a token out of a model's config.json, `advice` answers "which fraction, context, cap and running
limit for what I want". `launch` and `settings` read a launch line or /server_info into the same
arguments, and the checks (`checks_*`, gathered by `audit`) judge them beside a traffic policy.

Everything here is pure: text and numbers in, findings out. No secret goes in: `settings` copies the
arguments it knows by name, and of keys only whether there is one.
"""
