"""What Spark's own connectors see of Delta and Iceberg tables, and what they do to them beside a job.

python tables_by_spark.py DIRECTORY PACKAGES
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession


def main() -> None:
    place, packages = sys.argv[1:]
    settings = {
        "spark.ui.enabled": "false",
        "spark.jars.packages": packages,
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension,"
        "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.catalog.test": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.test.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "spark.sql.catalog.test.uri": f"jdbc:sqlite:{place}/catalog.db",
        "spark.sql.catalog.test.warehouse": f"file://{place}/warehouse",
    }
    builder = SparkSession.builder.master("local[2]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    found = {}
    for kind in ("added", "put"):
        tables = {"delta": f"delta.`{place}/delta-{kind}`", "iceberg": f"test.db.{kind}"}
        for name, table in tables.items():
            found[f"{name} {kind}"] = sorted(map(list, spark.sql(f"select word, n, part from {table}").collect()))
            spark.sql(f"insert into {table} (word, n, part) values ('by spark', 9, 'x')")
        spark.sql(f"optimize {tables['delta']}")
        spark.sql(f"call test.system.rewrite_data_files(table => 'db.{kind}', options => map('min-input-files', '2'))")
        expired = "older_than => timestamp '2100-01-01 00:00:00', retain_last => 1"
        spark.sql(f"call test.system.expire_snapshots(table => 'db.{kind}', {expired})")
    sys.stdout.write("\n" + json.dumps(found) + "\n")
    spark.stop()


if __name__ == "__main__":
    main()
