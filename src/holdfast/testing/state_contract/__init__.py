"""The contract of state backends, in parts; `StateBackendContract` has all of them."""
