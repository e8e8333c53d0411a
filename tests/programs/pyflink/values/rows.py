"""The features of Row in a function: fields by name, position and attribute, equality, and row classes."""

from pyflink.common import Row, Types
from pyflink.datastream import StreamExecutionEnvironment


def describe(row):
    yield f"{row.name} {row['age']} {row[1]} {len(list(row))} {row.as_dict()}"
    name, age = row
    yield f"{name} unpacked {age}, equal {row == Row(name='ada', age=36)}, other {row == Row(name='ada', age=1)}"
    yield f"{name} repr {row!r}"
    person = Row("name", "age")
    made = person(name.upper(), age + 1)
    yield f"{name} made {made.name} {made.age} {made}"
    yield f"{name} plain {Row(name, age)!r} {Row(name, age) == Row(name, age)} {Row(name, age)[0]}"
    yield f"{name} nested {Row(who=row, n=1).as_dict(True)}"


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
kind = Types.ROW_NAMED(["name", "age"], [Types.STRING(), Types.INT()])
people = env.from_collection([Row(name="ada", age=36), Row("bob", 41), ("eve", 7)], type_info=kind)
people.flat_map(describe, output_type=Types.STRING()).print()
env.execute("rows")
