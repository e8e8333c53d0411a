"""From and to Arrow, Avro, DDL and plain Python values; from an old type to a new one."""
