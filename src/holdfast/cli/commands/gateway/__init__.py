"""Commands about the LLM gateway: to run one, its keys, its limits."""
