"""What consumes the winners: attention over a rank's own tokens, and the merge of its results.

1. `sparse_attention`: every query head against the winners that this rank holds; a row's result is
   its output and the log-sum-exp (LSE) of its logits.
2. `lse_merge`, or an `LseMerge` that was reserved before: the ranks' results become the attention
   over all winners; each rank ends with its slice of the heads.
3. `RowGather`, the other consumer: every rank's rows of the KV cache in one piece of scratch, for
   attention that wants all winners of a row on one rank.

=========  ==========  ===================  ====================================================
tensor     shape       dtype                meaning
=========  ==========  ===================  ====================================================
q          (T, H, D)   float32, bf16, fp16  queries of all heads, on every rank
keys       (N, G, D)   as q                 rows of this rank's cache; G key heads divide H
values     (N, G, V)   as q                 or V alone: the first V elements of each key (MLA)
winners    (T, K)      int32                rows of the cache, any order, -1 for none
out        (T, H, V)   as q                 of all heads, of this rank's winners alone
lse        (T, H)      float32              -inf where a row has no winner here
merged     (T, H/p, V) as q                 heads ``rank * H/p ..`` of all ranks' winners
=========  ==========  ===================  ====================================================

All arithmetic is float32. On CUDA everything is enqueued on torch's current stream, and nothing is
read back, so that it can be captured.
"""

from dcp_comm.attention.local import sparse_attention
from dcp_comm.attention.merge import LseMerge, lse_merge
from dcp_comm.attention.result import Attended
from dcp_comm.attention.rows import RowGather

__all__ = ["Attended", "LseMerge", "RowGather", "lse_merge", "sparse_attention"]
