"""FlashInfer MLA over an FP8 KV pool, reading no row that the step does not attend to.

factory.py       builds the backend that a runner asks for, or refuses by name
registration.py  registers the name where sglang looks it up in the forward pass
support.py       what is served, what is refused and why
policy.py        how a step reads: the operator's choice, or what was measured
readings.py      which reading each kind of step takes, made before the server is ready
backend.py       overrides of sglang's backend: plans take a reading, layers use it
draft.py         a draft model's decode of several steps
metrics.py       counters and log lines in service
launch.py        launches a Triton kernel without specialising its arguments anew

upstream/        what differs by sglang's release: settings, runners, pools, updaters, backends
pool/            the pool's format; the pool as layers see it; new keys cast and written
gather/          a reading: the rows in use are gathered and cast into a buffer
direct/          a reading: FP8 rows are read where they lie, by kernels of its own

A step is planned by sglang's own code. The plan leaves a reading behind, `Gathered` or `Direct`,
and every layer of the step takes its keys from `reading.keys(rows)`.
"""
