"""Attention over selected pages (decode), over the whole paged context (prefill), and the merge of splits."""
