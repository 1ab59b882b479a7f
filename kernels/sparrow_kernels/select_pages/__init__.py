"""From page scores and budgets to the pages each KV head attends to."""
