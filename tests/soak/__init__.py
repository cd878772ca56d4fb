"""A seeded soak: ranks over gloo that are killed, frozen, interrupted and made again for long.

    python -m tests.soak --ranks 2 --gathers 10000 --seed 1

Everything that happens follows from the seed (`tests.soak.schedule`). Each rank tells of every call
what came of it (`tests.soak.rank`); a supervisor starts killed ranks again and wakes frozen ones
(`tests.soak.supervisor`); at the end the whole history is checked (`tests.soak.history`): nothing
wrong was ever reported as success, everybody was told in time, descriptors, threads and memory
stayed flat.
"""
