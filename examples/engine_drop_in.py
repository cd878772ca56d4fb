"""The change in an engine that merges its ranks' top-K: `before`, and three parts of `after`.

``torchrun --nproc-per-node 2 examples/engine_drop_in.py`` runs both on one step.
"""

import torch
import torch.distributed as dist

import dcp_comm as dc

K, MAX_ROWS, WIDTH = 64, 256, 900


def before(logits, topk_indices, rank, size, row_starts):
    """Score and id as float32 values; three buffers that no profile run has seen."""
    scores = logits.gather(1, topk_indices.long() + row_starts[:, None])
    packed = torch.stack([scores, (topk_indices * size + rank).float()], 2)
    gathered = packed.new_empty(size, *packed.shape)
    dist.all_gather_into_tensor(gathered.view(-1, *packed.shape[1:]), packed)
    scores, ids = gathered.permute(1, 0, 2, 3).reshape(len(logits), -1, 2).unbind(2)
    topk_indices.copy_(ids.gather(1, scores.topk(topk_indices.shape[1]).indices))


def start(group):
    """+ at start-up, once; ``dc.adopt_nccl(pynccl_comm, rank, size, device)`` takes a raw one."""
    comm = dc.from_process_group(group)
    merge = dc.TopKMerge(comm, K, MAX_ROWS, interleave=1)
    merge.prepare()  # the ranks agree on every option, connections exist
    return merge


def profile_specs(merge):
    """+ in the profiling branch, into the same request as what stays alive: the gathered keys."""
    return [(spec.shape, spec.dtype) for spec in merge.specs()]


def after(merge, views, logits, topk_indices, lengths, row_starts, counts, certified):
    """+ in the place of `before`: local positions in, global ids out, in the engine's buffers."""
    out = dc.MergeResult(topk_indices, counts, certified)
    job = merge.begin(len(topk_indices), scratch=views, out=out)
    job.pack_logits(logits, topk_indices, row_starts, lengths)  # chunk after chunk of logits
    job.finish()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    merge, rows = start(dist.group.WORLD), 200
    views = [torch.empty(shape, dtype=dtype) for shape, dtype in profile_specs(merge)]
    torch.manual_seed(dist.get_rank())
    logits, row_starts = torch.randn(rows, WIDTH), torch.randint(0, 100, (rows,))
    own = [row[start:].topk(K).indices for row, start in zip(logits, row_starts, strict=True)]
    ids, theirs = torch.stack(own).int(), torch.stack(own).int()  # the engine's own local top-K
    counts, certified = torch.zeros(rows).int(), torch.zeros(rows).bool()
    before(logits, theirs, dist.get_rank(), dist.get_world_size(), row_starts)
    after(merge, views, logits, ids, WIDTH - row_starts, row_starts, counts, certified)
    if dist.get_rank() == 0:
        print(f"{int((ids == theirs).all(1).sum())} of {rows} rows the same, in order")
        print(f"{int(certified.sum())} certified exact, whatever the local top-K does on ties")
    dist.destroy_process_group()
