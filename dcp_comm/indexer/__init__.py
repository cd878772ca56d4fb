"""The sparse indexer: each query row's exact top-K tokens, whichever ranks hold them.

1. ``limits = IndexerLimits(...)`` says the most that one call will bring;
   ``indexer = SparseIndexer(comm, limits)`` is the same on every rank.
2. ``indexer.reserve(workspace)`` is the profiling branch: it asks for the worst case of both paths.
   ``workspace.lock()`` then ends all growth.
3. Each step: ``write_keys(cache, keys, indexer.slots(batch))`` stores this rank's new keys in its
   pages, unless the engine has its own kernel for it. Then ``prefill`` and ``decode``, in either
   order, in one workspace. Results are the caller's, never scratch: layers and draft steps that
   share a selection read it from there.

What a call brings, T query rows, H heads, D head_dim, R requests; the same on every rank, except
that ``cache`` and ``page_table`` hold the tokens of this rank alone:

=================  =================  ==============  ==========================================
``q``              (T, H, D)          float32         query of each row and head
``weights``        (T, H)             float32         weight of each row and head
``cache``          see `pages`        3 forms         keys, contiguous, read and not written
``page_table``     (R, any)           int32 or int64  local position j of request r lies in page
                                                      ``page_table[r, j // page_size]``
``lengths``        R                  host ints       *global* lengths, this step included
``query_lengths``  R                  host ints       rows of each request
=================  =================  ==============  ==========================================

How the ranks stay in step: one merge a call. It exchanges whenever ``chunk_rows`` rows were packed,
so the number and sizes of its messages depend on the rows of the batch alone. Logits are cut by
global lengths too, as the rank that holds the most tokens has to, so that every rank walks the same
chunks; a rank without a token scores nothing and packs padding.
"""

from dcp_comm.indexer.batch import IndexerBatch
from dcp_comm.indexer.limits import IndexerLimits
from dcp_comm.indexer.pages import write_keys
from dcp_comm.indexer.scoring import Score, relu_scores
from dcp_comm.indexer.sparse import SparseIndexer

__all__ = [
    "IndexerBatch",
    "IndexerLimits",
    "Score",
    "SparseIndexer",
    "relu_scores",
    "write_keys",
]
