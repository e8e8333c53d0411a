"""Makes the archives beside it: savepoints of Flink, of a Java and of a Python program.

    python -m tests.golden.flink.make DIRECTORY

Downloads Flink as PyFlink's wheel (850 MB for each version) and flink-avro, and needs `javac` and `mvn`. An archive
that was written stays as it is: a new version of Flink gets new ones.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
VERSIONS = {"1.20": ("1.20.5", "1.20.3"), "2.3": ("2.3.0", "2.3.0")}  # PyFlink's, and the newest flink-avro there is
JAVA = {
    "java-1.20": ("1.20", "CANONICAL", "hashmap"),
    "java-2.3": ("2.3", "CANONICAL", "hashmap"),
    "rocksdb-2.3": ("2.3", "CANONICAL", "rocksdb", "compressed"),
    "native-2.3": ("2.3", "NATIVE", "hashmap"),
}
PYTHON = {"process-1.20": ("1.20", "process"), "process-2.3": ("2.3", "process")}
OPENED = [f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in ("lang", "util", "time", "math")]
POM = """<project><modelVersion>4.0.0</modelVersion><groupId>a</groupId><artifactId>a</artifactId><version>1</version>
<dependencies><dependency><groupId>org.apache.flink</groupId><artifactId>flink-avro</artifactId>
<version>{version}</version></dependency></dependencies></project>"""


def made(work: Path, version: str) -> tuple[Path, str]:
    """The Python of an environment with PyFlink, and the class path of the Java program."""
    pyflink, avro = VERSIONS[version]
    folder = work / version
    python, jars, classes = folder / "bin" / "python", folder / "jars", folder / "classes"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        install = [python, "-m", "pip", "install", "--quiet", f"apache-flink=={pyflink}", "setuptools<80"]
        subprocess.run(install, check=True)
        (folder / "pom.xml").write_text(POM.format(version=avro))
        copy = ["mvn", "-q", "-f", folder / "pom.xml", "dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
        subprocess.run(copy, check=True)
    [library] = folder.glob("lib/python*/site-packages/pyflink/lib")
    path = f"{library}/*:{jars}/*"
    classes.mkdir(exist_ok=True)
    subprocess.run(["javac", "-cp", path, "-d", classes, HERE / "States.java"], check=True)
    return python, f"{classes}:{path}"


def main(directory: str) -> None:
    """Write every archive that is not there."""
    work = Path(directory).resolve()
    for name, (version, *arguments) in {**JAVA, **PYTHON}.items():
        archive = HERE / f"{name}.zip"
        if archive.exists():
            continue
        python, path = made(work, version)
        place = work / name
        program = [python, HERE / "states.py"] if name in PYTHON else ["java", *OPENED, "-cp", path, "States"]
        subprocess.run([*program, place.as_uri(), *arguments], check=True)
        [savepoint] = place.iterdir()
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as whole:
            for file in sorted(savepoint.iterdir()):
                whole.write(file, file.name)


if __name__ == "__main__":
    main(*sys.argv[1:])
